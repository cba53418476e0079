// The numbers of the rounds in sight: sums, how far drafts hold, and where the time goes.
function drawNumbers(film, done) {
  const sums = film.sumsOf(done);
  const { drafted, accepted, draft, verify } = sums;
  const [passes, tokens] = [film.passes(done), sums.tokens - sums.first];
  say(part.additional, passes ? (accepted / passes).toFixed(2) : "–");
  say(part.passes, passes ? `${passes}` : "–");
  say(part.saved, passes ? `${tokens - passes}` : "–");
  say(part.acceptance, drafted ? `${((100 * accepted) / drafted).toFixed(0)} %` : "–");
  say(part.speed, passes && draft + verify ? (tokens / (draft + verify)).toFixed(1) : "–");
  drawPositions(sums);
  drawTimeline(film, done, sums);
}

function drawPositions({ made, kept }) {
  const chart = part.positions;
  while (chart.children.length > made.length) chart.lastChild.remove();
  made.forEach((count, i) => {
    const item = chart.children[i] ?? chart.appendChild(make("li", "", make("span", "bar"), make("strong", ""), make("span", "")));
    const [bar, share, place] = item.children;
    bar.style.blockSize = `${(3 * kept[i]) / count}rem`;
    say(share, percent(kept[i] / count));
    say(place, `${i + 1}`);
    item.title = words.position(i + 1, kept[i], count);
  });
}

// Two shapes, however many passes: one block each, at its time, or one for so many passes that they can be told apart.
// They are drawn once; what is still to come is veiled.
const BLOCKS = 400;
const timeline = { film: null, rounds: 0 };

function drawTimeline(film, done, { draft, verify }) {
  const { seconds, guessing } = film;
  const total = seconds.at(-1) || 1; // a run of no time has no width
  const [rounds, each] = [seconds.length, Math.max(1, Math.ceil(seconds.length / BLOCKS))];
  if (timeline.film !== film || timeline.rounds !== rounds) {
    Object.assign(timeline, { film, rounds });
    let [drafting, verifying] = ["", ""];
    for (let first = 0; first < rounds; first += each) {
      const last = Math.min(first + each, rounds) - 1;
      const began = seconds[first - 1] ?? 0;
      const drafted = guessing[last] - (guessing[first - 1] ?? 0);
      const [from, middle, to] = [began, began + drafted, seconds[last]].map((time) => (1000 * time) / total);
      const gap = Math.min(1.5, (to - from) / 5);
      drafting += `M${from.toFixed(1)} 0V16H${middle.toFixed(1)}V0Z`;
      verifying += `M${middle.toFixed(1)} 0V16H${(to - gap).toFixed(1)}V0Z`;
    }
    part.drafting.setAttribute("d", drafting);
    part.verifying.setAttribute("d", verifying);
    say(part.timelineHelp, words.timelineHelp(each));
  }
  part.coming.style.insetInlineStart = `${(100 * (seconds[done - 1] ?? 0)) / total}%`;
  say(part.draftTime, done ? words.drafting(draft.toFixed(2)) : "");
  say(part.verifyTime, done ? words.verifying(verify.toFixed(2)) : "");
  part.charts.hidden = rounds === 0;
}
