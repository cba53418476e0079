// Two decodes of one text, measured one after the other, shown side by side on one clock.
const race = { films: [], clock: 0, last: 0, playing: false };

// Begins a race of two traces of the same text, plain decode's first; null ends it.
function startRace(traces) {
  race.playing = false;
  race.films = (traces ?? []).map((trace) => new Film(trace));
  part.race.hidden = !traces;
  if (!traces) return;
  part.raceScrub.max = Math.max(...race.films.map((film) => film.seconds.at(-1)));
  race.clock = 0;
  sayRace();
  if (!isStill()) return playRace();
  race.clock = Number(part.raceScrub.max);
  drawRace();
}

function sayRace() {
  part.lanes.replaceChildren(...race.films.map(({ trace }) => lane(trace)));
  if (race.films.length) say(part.verdict, verdict(...race.films));
}

function lane(trace) {
  const text = make("p", "text");
  text.dir = "auto";
  return make("li", "", make("h3", "", words.lane[trace.drafter]), make("p", "count"), make("progress", ""), text);
}

function drawRace() {
  race.films.forEach((film, i) => {
    const [, counter, bar, text] = part.lanes.children[i].children;
    const position = film.at(film.momentAt(race.clock));
    const written = film.sumsOf(position.done).tokens;
    const whole = position.done === film.rounds.length;
    say(text, film.text(position));
    say(counter, words.counted(film.passes(position.done), written, Math.min(race.clock, film.seconds.at(-1)).toFixed(2), whole));
    [bar.max, bar.value] = [film.trace.token_ids.length, written];
    bar.ariaLabel = words.lane[film.trace.drafter];
  });
  part.raceScrub.value = race.clock;
  part.raceScrub.setAttribute("aria-valuetext", `${race.clock.toFixed(2)} s`);
  say(part.racePlay, race.playing ? "❚❚" : "▶");
  part.racePlay.ariaLabel = race.playing ? words.pause : words.play;
}

function playRace() {
  const end = Number(part.raceScrub.max);
  race.playing = !race.playing;
  if (race.clock >= end) race.clock = 0;
  race.last = performance.now();
  requestAnimationFrame(tickRace);
  drawRace();
}

function tickRace(now) {
  if (!race.playing) return;
  race.clock += (Number(part.raceRate.value) * Math.max(0, now - race.last)) / 1000;
  race.last = now;
  if (race.clock >= Number(part.raceScrub.max)) {
    race.clock = Number(part.raceScrub.max);
    race.playing = false;
  }
  drawRace();
  if (race.playing) requestAnimationFrame(tickRace);
}

// Equal or not is said of the ids, and slower as plainly as faster; two that did the same are neither.
function verdict(plain, other) {
  const ids = plain.trace.token_ids;
  const theirs = other.trace.token_ids;
  const differs = ids.findIndex((id, i) => theirs[i] !== id);
  const first = differs >= 0 ? differs : ids.length === theirs.length ? -1 : ids.length;
  const [before, after] = [plain.seconds.at(-1), other.seconds.at(-1)];
  const same = first < 0 ? words.sameIds(ids.length) : words.otherText(first + 1);
  if (!before || !after) return same; // a first token alone takes no pass of its own
  const times = (before / after).toFixed(2);
  if (!other.sumsOf(other.rounds.length).drafted) return `${same} ${words.noise(times)}`;
  return `${same} ${words.faster({
    drafter: words.lane[other.trace.drafter],
    times,
    slower: after > before,
    passes: other.passes(other.rounds.length),
    before: plain.passes(plain.rounds.length),
  })}`;
}

part.racePlay.addEventListener("click", playRace);
part.raceScrub.addEventListener("input", () => {
  race.playing = false;
  race.clock = Number(part.raceScrub.value);
  drawRace();
});
addSpeeds(part.raceRate);
