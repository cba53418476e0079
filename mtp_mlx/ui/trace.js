// Draws a trace (see mtp_mlx/trace.py) as it grows. What people and models wrote enters the page through text nodes only.
const root = element.querySelector(".mtp");
const part = Object.fromEntries([...root.querySelectorAll("[data-part]")].map((node) => [node.dataset.part, node]));

const GLYPHS = { pending: "?", accepted: "✓", rejected: "✗", unread: "–", correction: "↻", bonus: "+", plain: "→" };
const MARKS = { " ": "·", "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽" };

let run = -1; // the number of the run that is shown, 0 before the first one
let drawn = 0; // rounds of it that will not change any more

function draw() {
  const trace = props.value || { status: "idle" };
  const number = trace.run ?? 0;
  if (number < run) return; // a newer run has replaced it: what it still says is not shown
  if (number > run) {
    run = number;
    clear();
    if (run) show();
  }
  root.trace = trace;
  root.dataset.status = trace.status;
  say(part.status, statusLine(trace));
  if (trace.rounds) {
    drawRounds(trace);
    say(part.text, trace.text);
    drawNumbers(trace.stats);
    drawWarnings(trace.warnings);
  }
  say(part.live, trace.status === "done" ? `${statusLine(trace)} ${trace.text}` : announcement(trace));
}

function clear() {
  drawn = 0;
  part.rounds.replaceChildren();
  say(part.text, "");
  drawNumbers(null);
  drawWarnings([]);
}

// On a narrow screen the trace is below the form: bring a new run into view.
function show() {
  const { top } = root.getBoundingClientRect();
  if (top < 0 || top > window.innerHeight - 100) root.scrollIntoView();
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function make(tag, className, text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

function statusLine(trace) {
  const tokens = trace.stats ? `${trace.stats.tokens} token${trace.stats.tokens === 1 ? "" : "s"}` : "";
  switch (trace.status) {
    case "idle":
      return "Ready. Choose an example or write a text, then press Run.";
    case "starting":
      return "Starting…";
    case "queued":
      return trace.place === 1 ? "Waiting: one run is ahead of yours." : `Waiting: ${trace.place} runs are ahead of yours.`;
    case "loading":
      return "Loading the model’s weights, once. This takes a few seconds…";
    case "running":
      return trace.prompt_tokens ? `Writing: ${tokens} of at most ${trace.max_tokens}…` : "Reading the text…";
    case "done":
      return trace.finish === "end"
        ? `Done: the model ended its text after ${tokens}.`
        : `Done: the budget of ${trace.max_tokens} tokens is used up.`;
    case "stopped":
      return trace.stats ? `Stopped after ${tokens}. This is the text so far.` : "Stopped before anything was written.";
    case "failed":
      return `Failed – ${trace.message}`;
    default:
      return trace.status;
  }
}

// A screen reader hears where the run stands, not every token.
function announcement(trace) {
  return trace.status === "running" ? "Writing…" : statusLine(trace);
}

function drawNumbers(stats) {
  say(part.additional, stats ? stats.additional_per_pass.toFixed(2) : "–");
  say(part.passes, stats ? `${stats.rounds}` : "–");
  say(part.saved, stats ? `${stats.passes_saved}` : "–");
  say(part.acceptance, stats?.drafted ? `${(100 * stats.acceptance_rate).toFixed(0)} %` : "–");
  say(part.speed, stats?.seconds ? stats.tokens_per_second.toFixed(1) : "–");
}

function drawWarnings(warnings) {
  part.warnings.hidden = warnings.length === 0;
  part.warnings.replaceChildren(...warnings.map((line) => make("li", "", `⚠ ${line}`)));
}

function drawRounds({ rounds, pending }) {
  for (; drawn < rounds.length; drawn++) fill(box(drawn), judge(rounds[drawn]), rounds[drawn]);
  if (pending.length) fill(box(drawn), pending.map((token) => [token, "pending"]));
}

// The box of a round: the one that shows its pending draft, or a new one.
function box(index) {
  const known = part.rounds.children[index];
  if (known) return known;
  const item = make("li", "round");
  item.append(make("span", "hidden", "pass "), make("span", "number", `${index + 1}`), make("span", "tokens"));
  part.rounds.append(item);
  return item;
}

// The tokens of a round, each with its state.
function judge({ drafted, accepted, token, kind }) {
  const first = kind === "correction" ? "rejected" : "unread"; // after a verified end of text nothing is read
  const state = (i) => (i < accepted ? "accepted" : i === accepted ? first : "unread");
  const judged = drafted.map((one, i) => [one, state(i)]);
  return token ? [...judged, [token, kind]] : judged;
}

// Shows tokens in a round's box; a token that is there already only changes its state.
function fill(item, tokens, round) {
  const chips = item.lastChild;
  while (chips.children.length > tokens.length) chips.lastChild.remove();
  tokens.forEach(([token, state], i) => {
    const chip = chips.children[i] ?? chips.appendChild(make("span", "token"));
    if (chip.dataset.id !== `${token.id}`) {
      const glyph = make("i", "");
      glyph.ariaHidden = "true";
      chip.replaceChildren(make("span", "hidden"), glyph, readable(token.text));
      chip.dataset.id = token.id;
    }
    chip.className = `token ${state}`;
    chip.dataset.state = state;
    chip.title = describe(token, state);
    say(chip.children[0], `${state} `);
    say(chip.children[1], GLYPHS[state]);
  });
  if (round) {
    const milliseconds = Math.round(1000 * (round.draft_seconds + round.verify_seconds));
    item.title = `${round.accepted} of ${round.drafted.length} guesses kept, ${milliseconds} ms`;
  }
}

function describe(token, state) {
  const sure = token.probability == null ? "" : `, drafter ${(100 * token.probability).toFixed(0)} % sure`;
  return `${state}: token ${token.id}${sure}`;
}

// A token's text with its white space and control characters made visible.
function readable(text) {
  const node = document.createElement("bdi");
  for (const piece of text.split(/([\p{Zs}\p{Cc}])/u)) {
    if (/^[\p{Zs}\p{Cc}]$/u.test(piece)) node.append(make("span", "mark", mark(piece)));
    else if (piece) node.append(piece);
  }
  if (!text) node.append(make("span", "mark", "∅"));
  return node;
}

function mark(character) {
  const code = character.codePointAt(0);
  return MARKS[character] ?? (code < 32 ? String.fromCodePoint(0x2400 + code) : `U+${code.toString(16).padStart(4, "0")}`);
}

watch("value", draw);
draw();
