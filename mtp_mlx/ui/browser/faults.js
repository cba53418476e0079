// The fault lab: a text as it should be, and beside it what a famous bug made of it, both recorded by running them.

function faultLab(piece) {
  for (const { fault, right, wrong } of lessons.faults) {
    const { title, why } = words.learn.faults[fault];
    const shown = make("div", "pair");
    const toggle = make("input", "");
    Object.assign(toggle, { type: "checkbox", role: "switch" });
    toggle.addEventListener("change", () => {
      shown.replaceChildren(...(toggle.checked ? sides(fault, new Film(right), new Film(wrong), why) : []));
    });
    piece.append(make("div", "fault", make("label", "switch", toggle, ` ${title}`), shown));
  }
}

function sides(fault, right, wrong, why) {
  const texts = [right, wrong].map((film) => pieces(fault, film));
  const parts = texts[1].findIndex((text, i) => text !== texts[0][i]);
  const first = parts < 0 ? texts[1].length : parts;
  const columns = [right, wrong].map((film, i) => {
    const tokens = texts[i].map((text, place) => differing(text, place - first, i));
    if (texts[i].length === first) tokens.push(make("span", "token wrong first", words.learn.endsHere));
    return make("div", "", make("h3", "", words.learn.sides[i]), written(film.trace.text), make("p", "tokens", ...tokens));
  });
  const round = Math.min(roundOf(fault, wrong, first), wrong.rounds.length - 1);
  const pass = make("p", "round", make("span", "number", words.pass(round + 1)), chips(wrong.tokens(round, Infinity)));
  return [
    make("p", "", why),
    make("p", "note", words.learn.asked(right.trace)),
    make("div", "sides", ...columns),
    make("p", "note", words.learn.culprit),
    pass,
  ];
}

// What is compared: tokens, or where the tokens are the same, what each pass showed of them.
function pieces(fault, film) {
  if (fault === "emoji") return film.rounds.map(({ added }) => added);
  return film.committed(film.rounds.length).map(({ text }) => text);
}

function differing(text, after, side) {
  const node = make("span", `token ${after < 0 ? "plain" : side ? "wrong" : "accepted"}`);
  if (after === 0) {
    node.classList.add("first");
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
