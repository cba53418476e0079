// Draws what the server says of a run as it comes, unless a recorded trace is on show.
const shown = { recorded: false, from: null };
const hearing = new Hearing({ begin, changed });
let rival = null; // in a race, the film of what plain decode did before
let typed = null; // what is in the form, once that has changed

function draw() {
  // As text: what the framework is given as objects it clones and watches whole, at every change.
  if (props.value) hearing.take(JSON.parse(props.value));
}

function begin(news, before) {
  rival = news.lane === 2 ? before : null;
  if (rival && shown.recorded) return; // nobody asked for another run: this one goes on
  shown.recorded = false;
  part.stale.hidden = part.fileError.hidden = true;
  sayOrigin();
  keepFocus();
  load(hearing.film);
  startRace(null);
  if (!rival) show();
}

function changed(film) {
  const { trace } = film;
  root.trace = trace;
  busy(BUSY.includes(trace.status));
  sayStale();
  announce(film);
  if (shown.recorded) return;
  refresh();
  if (rival && trace.status === "done") startRace([rival.trace, trace]);
}

// The page as it was after some moments of a film.
function drawAt(film, moment) {
  const { trace } = film;
  const position = film.at(moment);
  root.dataset.status = trace.status;
  root.toggleAttribute("data-replay", moment < film.length);
  say(part.status, moment < film.length ? words.replayed(film.passes(position.done), film.passes(film.rounds.length)) : statusLine(trace));
  grow(part.text, film.text(position));
  drawPasses(film, position);
  drawNumbers(film, position.done);
  drawWarnings(trace.warnings ?? []);
  drawLoading(trace);
  const why = draftingOff(film, position.done);
  say(part.off, why);
  part.off.hidden = !why;
}

// How far the weights are, where that is known in bytes.
function drawLoading({ status, of, done }) {
  part.loading.hidden = status !== "loading";
  if (of) [part.loading.max, part.loading.value] = [of, done];
  else part.loading.removeAttribute("value");
}

// Why nothing is drafted, if so: nobody is there to draft, the length is 0, or by measurement it would not pay.
function draftingOff(film, done) {
  const { drafter, draft_length: longest, pace, width } = film.trace;
  if (!film.rounds.length) return "";
  if (drafter === "plain") return words.off.plain;
  if (!pace) return longest ? "" : words.off.zero;
  const milliseconds = (seconds) => `${Math.round(1000 * seconds)} ms`;
  const costs = { one: milliseconds(pace.passes[1]), step: milliseconds(pace.step), chance: percent(pace.chances[0] ?? 0) };
  if (!longest) return words.off.measured(costs);
  return words.off.paced({ ...costs, width, wide: milliseconds(pace.passes[width]), without: film.sumsOf(done).undrafted, done: film.passes(done) });
}

function drawWarnings(warnings) {
  part.warnings.hidden = warnings.length === 0;
  const lines = warnings.map((line) => `⚠ ${told(line)}`);
  if ([...part.warnings.children].map(({ textContent }) => textContent).join("\n") === lines.join("\n")) return;
  part.warnings.replaceChildren(...lines.map((line) => make("li", "", line)));
}

// Where the focus is on what goes with the last run, it stays near.
function keepFocus() {
  const going = [part.rounds, part.player, part.download];
  if (going.some((place) => place.contains(document.activeElement))) part.rounds.focus({ preventScroll: true });
}

// On a narrow screen the trace is below the form: bring a new run into view.
function show() {
  const { top } = root.getBoundingClientRect();
  if (top < 0 || top > window.innerHeight - 100) root.scrollIntoView();
}

// Run while nothing runs, Stop while something does; the focus does not fall between them.
function busy(is) {
  const [run, stop, race] = ["run", "stop", "race"].map((id) => document.getElementById(id));
  if (!run || !stop || !race) return;
  const focus = document.activeElement;
  const lost = root.hasAttribute("data-lost"); // nobody is there to run or to stop anything
  [run.disabled, race.disabled, stop.disabled] = [is || lost, is || lost, !is || lost];
  if (is && (focus === run || focus === race)) stop.focus({ preventScroll: true });
  if (!is && focus === stop) run.focus({ preventScroll: true });
}

function statusLine(trace) {
  if (root.hasAttribute("data-lost")) return words.status.lost;
  const line = standing(trace);
  return trace.lane && trace.status !== "done" ? words.measuring(trace.lane, line) : line;
}

// A screen reader hears one sentence a round, and where the run stands.
function announce(film) {
  const { trace, rounds } = film;
  const round = rounds.at(-1);
  if (trace.status === "done") say(part.live, `${statusLine(trace)} ${trace.text}`);
  else if (trace.status !== "running" || !round) say(part.live, statusLine({ ...trace, of: 0 })); // not each megabyte
  else {
    const { accepted: kept, drafted, added: text } = round;
    say(part.live, words.heard({ pass: film.passes(rounds.length), kept, drafted: drafted.length, text }));
  }
}

// Whether what is on show is of another text than the one in the form.
function sayStale() {
  const { input, task } = hearing.film.trace;
  part.stale.hidden = shown.recorded || !typed || input === undefined || (input === typed.text && task === typed.task);
}

root.addEventListener("typed", ({ detail }) => {
  typed = detail;
  sayStale();
});

// Another language: what is said anew is drawn anew.
function speak(language) {
  if (!WORDS[language]) return;
  words = WORDS[language];
  sayWords();
  listRecorded();
  sayOrigin();
  part.fileError.hidden = true; // it was said in the other language
  passes.film = timeline.film = null;
  sayRace();
  drawRace();
  redraw();
}

root.addEventListener("spoken", ({ detail }) => speak(detail));

watchOver(hearing, (is) => {
  root.toggleAttribute("data-lost", is);
  busy(BUSY.includes(hearing.film.trace.status));
  redraw();
  say(part.live, part.status.textContent);
});
// A run is asked for by a button or by Shift and Enter; the form's nodes may come, and come anew, after this.
document.addEventListener("click", ({ target }) => {
  if (target.closest?.("#run, #race")) hearing.asked = true;
});
document.addEventListener("keydown", ({ key, shiftKey, target }) => {
  if (key === "Enter" && shiftKey && target.closest?.("#text")) hearing.asked = true;
});

// What was typed last, too, which the framework has not passed on yet, and does not where the server is gone.
addEventListener("pagehide", () => {
  const typed = document.querySelector("#text textarea");
  if (typed) keep("mtp-text", typed.value);
});

hearing.film.trace.ended = takeKept("mtp-ended") !== null; // by loading the page anew
root.trace = hearing.film.trace;
load(hearing.film);
speak(WORDS[document.documentElement.lang] ? document.documentElement.lang : "en");
watch("value", draw);
draw();
