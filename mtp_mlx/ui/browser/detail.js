// What stands behind one token: opened below its pass, closed by Escape, its button or the token itself.
const NUMBER = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

function openDetail(round, place) {
  closeDetail();
  passes.opened = { round, place };
  drawDetail();
}

function closeDetail() {
  root.querySelector(".detail")?.remove();
  const chip = passes.opened && chipOf(passes.opened);
  if (chip) chip.ariaExpanded = "false";
  passes.opened = null;
}

function drawDetail() {
  const before = root.querySelector(".detail");
  const focused = before?.contains(document.activeElement);
  before?.remove();
  const { round: index, place } = passes.opened;
  const chip = chipOf(passes.opened);
  if (!chip) return closeDetail();
  chip.ariaExpanded = "true";
  const box = detail(passes.film, index, place, chip.dataset.state);
  chip.closest(".round").append(box);
  if (focused) box.querySelector(".close").focus({ preventScroll: true });
}

function detail(film, index, place, state) {
  const facts = factsOf(film, index, place, state);
  const box = make("div", "detail");
  box.role = "group";
  box.ariaLabel = `${words.pass(film.number(index))}, ${words.state[state]}`;
  const close = make("button", "close", "×");
  close.type = "button";
  close.ariaLabel = words.close;
  close.addEventListener("click", () => {
    const chip = chipOf(passes.opened);
    closeDetail();
    chip?.focus();
  });
  box.append(close, make("p", "why", ...why(facts)), list(facts), ...choices(facts));
  const looked = attention(film, index, place);
  if (looked) box.append(looked);
  return box;
}

function factsOf(film, index, place, state) {
  const round = film.rounds[index];
  const drafted = round ? round.drafted : film.pending;
  const guess = drafted[place];
  const own = place >= drafted.length;
  const token = own ? round.token : guess;
  const row = round?.rows[own ? round.accepted : place];
  const drafter = words.drafterName[film.trace.drafter] ?? words.drafterName.mtp;
  return { drafter, state, token, own, guess, row, place, of: drafted.length, recorded: !round || round.rows.length > 0 };
}

// The sentence, as nodes: tokens in it are quoted and kept from turning its direction.
function why({ drafter, state, token, own, guess, row }) {
  const quotes = [];
  const quote = (text) => `\u0000${quotes.push(text) - 1}\u0000`;
  const bracket = (p) => (p == null ? "" : ` (${NUMBER.format(p)})`);
  const best = row?.top[0];
  const sentence = words.why[state]({
    drafter,
    token: quote(token.text),
    sure: bracket(guess?.probability),
    wanted: best ? quote(best.text) : "",
    chance: bracket(own || state === "rejected" ? best?.probability : row?.probability),
    rank: row?.rank ? words.ordinal(row.rank) : "",
  });
  return sentence.split("\u0000").map((piece, i) => (i % 2 ? quoted(quotes[piece]) : piece));
}

function quoted(text) {
  const node = make("q", "");
  node.append(readable(text));
  return node;
}

function list({ drafter, token, own, guess, row, place, of, state }) {
  const entries = [
    [words.id, `${token.id}`],
    [words.place, own ? words.ownToken : words.placeOf(place + 1, of)],
  ];
  if (guess?.probability != null) entries.push([words.drafterSure(drafter), percent(guess.probability)]);
  const chance = own ? row?.top[0]?.probability : row?.probability;
  if (chance != null && state !== "pending") {
    entries.push([words.modelSure, percent(chance)], [words.rank, `${own ? 1 : row.rank}`]);
    entries.push([words.margin, `${NUMBER.format(row.margin)}, ${words.marginHelp}`]);
  }
  const dl = make("dl", "facts");
  for (const [name, value] of entries) dl.append(make("div", "", make("dt", "", name), make("dd", "", value)));
  return dl;
}

function choices({ drafter, state, token, guess, row, recorded }) {
  if (!recorded) return [make("p", "note", words.nothingBehind)];
  const tables = make("div", "choices");
  if (guess?.top?.length) tables.append(bars(words.drafterTop(drafter), guess.top, token.id));
  if (row && state !== "pending") tables.append(bars(words.modelTop, row.top, token.id));
  return [tables];
}

function bars(title, top, id) {
  const table = make("table", "bars", make("caption", "", title));
  for (const choice of top) {
    const bar = make("span", "bar");
    bar.style.inlineSize = `${Math.max(1, 100 * choice.probability)}%`;
    const name = make("th", choice.id === id ? "this" : "", readable(choice.text));
    name.scope = "row";
    table.append(make("tr", "", name, make("td", "", bar), make("td", "value", percent(choice.probability))));
  }
  return table;
}
