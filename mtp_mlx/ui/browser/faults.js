// The fault lab: a text as it should be, and beside it what a famous bug made of it, recorded or run here and now.

const switchedOn = new Set(); // faults whose recorded texts are on show

function faultLab(piece) {
  piece.append(ownText());
  for (const { fault, right, wrong } of lessons.faults) {
    const { title, why } = words.learn.faults[fault];
    const shown = make("div", "pair");
    const toggle = make("input", "");
    Object.assign(toggle, { type: "checkbox", role: "switch" });
    const fill = () => {
      const nodes = () => [make("p", "", why), ...sides(fault, new Film(right), new Film(wrong))];
      shown.replaceChildren(...(toggle.checked ? nodes() : []));
    };
    toggle.checked = switchedOn.has(fault);
    toggle.addEventListener("change", () => {
      switchedOn[toggle.checked ? "add" : "delete"](fault);
      fill();
    });
    fill();
    piece.append(make("div", "fault", make("label", "switch", toggle, ` ${title}`), shown, trial(fault)));
  }
}

// Where the fault changed nothing, the two sides are the same, and no pass is to blame.
function sides(fault, right, wrong) {
  const all = [right, wrong].map((film) => pieces(fault, film));
  const same = isSame(fault, right, wrong);
  const parts = all[1].findIndex(({ key }, i) => key !== all[0][i]?.key);
  const first = same ? Infinity : parts < 0 ? all[1].length : parts;
  const columns = [right, wrong].map((film, i) => {
    const tokens = all[i].map(({ text }, place) => differing(text, place - first, i));
    if (all[i].length === first) tokens.push(make("span", "token wrong differs", words.learn.endsHere));
    return make("div", "", make("h3", "", words.learn.sides[i]), written(film.trace.text), make("p", "tokens", ...tokens));
  });
  const both = [make("p", "note", words.learn.asked(right.trace)), make("div", "sides", ...columns)];
  if (same) return both;
  const round = Math.min(roundOf(fault, wrong, first), wrong.rounds.length - 1);
  const pass = make("p", "round", make("span", "number", words.pass(wrong.number(round))), chips(wrong.tokens(round, Infinity)));
  return [...both, make("p", "note", words.learn.culprit), pass];
}

// What is compared: tokens, or where the tokens are the same, what each pass showed of them.
function pieces(fault, film) {
  if (fault === "emoji") return film.rounds.map(({ added }) => ({ key: added, text: added }));
  return film.committed(film.rounds.length).map(({ id, text }) => ({ key: id, text }));
}

function differing(text, after, side) {
  const node = make("span", `token ${after < 0 ? "plain" : side ? "wrong" : "accepted"}`);
  if (after === 0) {
    node.classList.add("differs");
    node.append(make("span", "hidden", `${words.learn.firstDifference} `), make("i", "", "≠"));
    node.children[1].ariaHidden = "true";
  }
  node.append(readable(text));
  return node;
}

// The pass that wrote the piece at a place.
function roundOf(fault, film, place) {
  if (fault === "emoji") return place;
  return film.rounds.findIndex((_, i) => film.committed(i + 1).length > place) >>> 0;
}
