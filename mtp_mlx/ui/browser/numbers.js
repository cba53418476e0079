// The numbers of the rounds in sight: sums, how far drafts hold, and where the time goes.
function fold(rounds) {
  const sums = { rounds: rounds.length, tokens: 0, drafted: 0, accepted: 0, draft: 0, verify: 0, made: [], kept: [] };
  for (const { drafted, accepted, token, draft_seconds, verify_seconds } of rounds) {
    sums.tokens += accepted + (token !== null);
    sums.drafted += drafted.length;
    sums.accepted += accepted;
    sums.draft += draft_seconds;
    sums.verify += verify_seconds;
    for (let i = 0; i < drafted.length; i++) {
      sums.made[i] = (sums.made[i] ?? 0) + 1;
      sums.kept[i] = (sums.kept[i] ?? 0) + (i < accepted);
    }
  }
  return sums;
}

function drawNumbers(film, done) {
  const sums = fold(film.rounds.slice(0, done));
  const { tokens, drafted, accepted, draft, verify } = sums;
  const passes = sums.rounds;
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

// Two shapes, however many passes: one block each, at its time. They are drawn once; what is still to come is veiled.
const timeline = { film: null, rounds: 0 };

function drawTimeline(film, done, { draft, verify }) {
  const total = film.seconds.at(-1) || 1; // a run of no time has no width
  if (timeline.film !== film || timeline.rounds !== film.rounds.length) {
    Object.assign(timeline, { film, rounds: film.rounds.length });
    let [drafting, verifying] = ["", ""];
    film.rounds.forEach(({ verify_seconds }, i) => {
      const times = [film.seconds[i - 1] ?? 0, film.seconds[i] - verify_seconds, film.seconds[i]];
      const [from, middle, to] = times.map((seconds) => (1000 * seconds) / total);
      const gap = Math.min(1.5, (to - from) / 5);
      drafting += `M${from.toFixed(1)} 0V16H${middle.toFixed(1)}V0Z`;
      verifying += `M${middle.toFixed(1)} 0V16H${(to - gap).toFixed(1)}V0Z`;
    });
    part.drafting.setAttribute("d", drafting);
    part.verifying.setAttribute("d", verifying);
  }
  part.coming.style.insetInlineStart = `${(100 * (film.seconds[done - 1] ?? 0)) / total}%`;
  say(part.draftTime, done ? words.drafting(draft.toFixed(2)) : "");
  say(part.verifyTime, done ? words.verifying(verify.toFixed(2)) : "");
  part.charts.hidden = film.rounds.length === 0;
}
