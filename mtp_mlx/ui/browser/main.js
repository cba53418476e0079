// Draws what the server says of a run (see mtp_mlx/trace.py) as it comes, unless a recorded trace is on show.
const BUSY = ["starting", "queued", "loading", "running"];
const shown = { run: -1, recorded: false }; // the number of the run, 0 before the first one
let live = new Film({ status: "idle" });

function draw() {
  // As text: what the framework is given as objects it clones and watches whole, at every change.
  const news = props.value ? JSON.parse(props.value) : { status: "idle" };
  const number = news.run ?? 0;
  if (number < shown.run) return; // a newer run has replaced it: what it still says is not shown
  if (number > shown.run) {
    Object.assign(shown, { run: number, recorded: false });
    live = new Film({ ...news, rounds: [] });
    part.stale.hidden = part.origin.hidden = part.fileError.hidden = true;
    load(live);
    startRace(null);
    if (number) show();
  }
  root.trace = news;
  live.trace = { prompt: live.trace.prompt ?? [], ...news };
  live.add((news.rounds ?? []).slice(live.rounds.length));
  if (news.rounds && news.status !== "running") live.rounds = news.rounds; // only now all of them are whole
  live.pending = news.pending ?? [];
  busy(BUSY.includes(news.status));
  if (!shown.recorded) refresh();
  if (news.rival && !race.films.length) startRace([news.rival, news]);
  announce(news);
}

// The page as it was after some moments of a film.
function drawAt(film, moment) {
  const { trace } = film;
  const position = film.at(moment);
  root.dataset.status = trace.status;
  root.toggleAttribute("data-replay", moment < film.length);
  say(part.status, moment < film.length ? words.replayed(position.done, film.rounds.length) : statusLine(trace));
  say(part.text, film.text(position));
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
function draftingOff({ trace, rounds }, done) {
  const { drafter, draft_length: longest, pace, width } = trace;
  if (!rounds.length) return "";
  if (drafter === "plain") return words.off.plain;
  if (!pace) return longest ? "" : words.off.zero;
  const milliseconds = (seconds) => `${Math.round(1000 * seconds)} ms`;
  const costs = { one: milliseconds(pace.passes[1]), step: milliseconds(pace.step), chance: percent(pace.chances[0] ?? 0) };
  if (!longest) return words.off.measured(costs);
  const without = rounds.slice(0, done).filter(({ drafted }) => !drafted.length).length;
  return words.off.paced({ ...costs, width, wide: milliseconds(pace.passes[width]), without, done });
}

function drawWarnings(warnings) {
  part.warnings.hidden = warnings.length === 0;
  part.warnings.replaceChildren(...warnings.map((line) => make("li", "", `⚠ ${told(line)}`)));
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
  [run.disabled, race.disabled, stop.disabled] = [is, is, !is];
  if (is && (focus === run || focus === race)) stop.focus({ preventScroll: true });
  if (!is && focus === stop) run.focus({ preventScroll: true });
}

function statusLine(trace) {
  const line = standing(trace);
  return trace.lane && !trace.rival ? words.measuring(trace.lane, line) : line;
}

function standing(trace) {
  const { status, finish, prompt_tokens, place, max_tokens: most, stage, done, of } = trace;
  const tokens = trace.stats ? words.tokens(trace.stats.tokens) : "";
  if (status === "running") return prompt_tokens ? words.status.running({ tokens, most }) : words.status.reading;
  if (status === "done") return words.status[finish]({ tokens, most });
  if (status === "stopped") return trace.stats ? words.status.stopped({ tokens }) : words.status.stoppedEarly;
  const line = words.status[status] ?? status;
  if (typeof line === "string") return line;
  const megabytes = of ? ` ${Math.round(done / 1e6)} / ${Math.round(of / 1e6)} MB` : "";
  return line({ message: told(trace.message ?? ""), place, stage: words.stage[stage] ?? "", megabytes });
}

// A screen reader hears one sentence a round, and where the run stands.
function announce(trace) {
  const round = live.rounds.at(-1);
  if (trace.status === "done") say(part.live, `${statusLine(trace)} ${trace.text}`);
  else if (trace.status !== "running" || !round) say(part.live, statusLine({ ...trace, of: 0 })); // not each megabyte
  else {
    const { accepted: kept, drafted, added: text } = round;
    say(part.live, words.heard({ pass: live.rounds.length, kept, drafted: drafted.length, text }));
  }
}

root.addEventListener("typed", ({ detail }) => {
  const { input, task } = live.trace;
  part.stale.hidden = shown.recorded || input === undefined || (input === detail.text && task === detail.task);
});

// Another language: what is said anew is drawn anew.
function speak(language) {
  if (!WORDS[language]) return;
  words = WORDS[language];
  sayWords();
  listRecorded();
  passes.film = timeline.film = null;
  sayRace();
  drawRace();
  redraw();
}

root.addEventListener("spoken", ({ detail }) => speak(detail));

load(live);
speak(WORDS[document.documentElement.lang] ? document.documentElement.lang : "en");
watch("value", draw);
draw();
