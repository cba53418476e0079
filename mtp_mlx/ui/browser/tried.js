// The fault lab on one's own text: a bug is run on what is typed under Watch, first without it and then with it.
const tried = new Map(); // by fault: the films of the run without the bug, and of the one with it
const trying = new Hearing({
  begin({ lane, fault }, before) {
    if (lane === 1) {
      leave(before);
      tried.set(fault, [trying.film]);
    } else tried.get(fault).push(trying.film);
  },
  changed: ({ trace }) => drawTried(trace.fault),
});

// Another run has taken the place of one that was not over.
function leave(film) {
  if (!BUSY.includes(film.trace.status)) return;
  film.trace = { ...film.trace, status: "stopped" };
  drawTried(film.trace.fault);
}

function trial(fault) {
  const act = button([], () => {
    if (isTrying(fault)) return trigger("halted");
    trying.asked = fault;
    trigger("tried", { fault });
  });
  const box = make("div", "trial", act, line(), make("div", "pair"));
  box.dataset.fault = fault;
  fillTrial(box);
  return box;
}

function isTrying(fault) {
  return BUSY.includes(tried.get(fault)?.at(-1).trace.status);
}

function drawTried(fault) {
  const box = part.step.querySelector(`.trial[data-fault="${fault}"]`);
  if (box) fillTrial(box);
}

function fillTrial(box) {
  const { fault } = box.dataset;
  const [act, result, shown] = box.children;
  const films = tried.get(fault) ?? [];
  const going = isTrying(fault);
  say(act, going ? words.learn.stopIt : words.learn.tryIt);
  act.ariaLabel = `${act.textContent}: ${words.learn.faults[fault].title}`;
  const lost = root.hasAttribute("data-lost") && (going || trying.asked === fault);
  result.hidden = !films.length && !lost;
  if (result.hidden) return;
  const { trace } = films.at(-1) ?? trying.film;
  const done = trace.status === "done" && !lost;
  const lane = going ? `${words.learn.lanes[trace.lane - 1]} ` : "";
  say(result, done ? outcome(fault, ...films) : `${lane}${lost ? words.status.lost : standing(trace)}`);
  shown.replaceChildren(...(done ? [make("p", "note", words.learn.triedWith(trace)), ...sides(fault, ...films)] : []));
}

// What the bug did to the text; where that is nothing, why, as counted.
function outcome(fault, right, wrong) {
  if (!isSame(fault, right, wrong)) return words.learn.shows;
  const rounds = wrong.rounds.slice(0, -1);
  const charged = rounds.reduce((sum, { drafted, accepted, token }) => sum + Math.max(drafted.length, accepted + (token !== null)), 0);
  const thrown = rounds.reduce((sum, { drafted, accepted }) => sum + drafted.length - accepted, 0);
  const { drafted } = wrong.sumsOf(wrong.rounds.length);
  const reason = !wrong.passes(wrong.rounds.length) ? "first" : drafted || fault === "emoji" ? fault : "none";
  const why = words.learn.unchanged[reason];
  return words.learn.shownNot(why({ charged, thrown, drafted, most: wrong.trace.max_tokens }));
}

function isSame(fault, right, wrong) {
  if (fault === "emoji") return right.trace.text === wrong.trace.text;
  const [ids, theirs] = [right, wrong].map(({ trace }) => trace.token_ids);
  return ids.length === theirs.length && ids.every((id, i) => id === theirs[i]);
}

// The text that is run: what is typed under Watch at the moment.
function ownText() {
  const change = button([words.learn.changeText], () => {
    document.querySelector("[role=tab]").click();
    requestAnimationFrame(() => document.querySelector("#text textarea").focus());
  });
  const [text, clamped] = [make("p", "text"), make("span", "")];
  clamped.dataset.empty = words.learn.noText;
  text.dir = "auto";
  text.append(clamped);
  const box = make("div", "own", make("p", "note", words.learn.ownText), text, change);
  sayOwnText(box);
  return box;
}

function sayOwnText(box) {
  if (box) say(box.children[1].firstChild, document.querySelector("#text textarea")?.value.trim() ?? "");
}

root.addEventListener("typed", () => sayOwnText(part.step.querySelector(".own")));
watchOver(trying, (is) => {
  root.toggleAttribute("data-lost", is);
  part.step.querySelectorAll(".trial").forEach(fillTrial);
});
watch("value", () => {
  if (props.value) trying.take(JSON.parse(props.value));
});
