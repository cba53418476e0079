// Where the head looked for one drafted token: the prompt and the text, tinted by its attention, one layer at a time.
const looking = { layer: 0 };
const STRONGEST = 60; // per cent of tint: what is written on it stays readable

// Null where the drafter has no attention, or the trace does not hold it.
function attention(film, index, place) {
  const layers = film.rounds[index]?.drafted[place]?.attention ?? [];
  if (!layers.length || !film.trace.prompt.length) return null;
  const layer = Math.min(looking.layer, layers.length - 1);
  const box = make("div", "attention", make("p", "title", words.looked));
  const choice = make("fieldset", "layers", make("legend", "hidden", words.looked));
  layers.forEach((_, i) => {
    const input = make("input", "");
    Object.assign(input, { type: "radio", name: `${root.dataset.name}-layer`, checked: i === layer });
    input.addEventListener("change", () => {
      looking.layer = i;
      box.replaceWith(attention(film, index, place));
      root.querySelector(".layers :checked").focus();
    });
    choice.append(make("label", "", input, ` ${words.layer(i + 1)}`));
  });
  const tokens = [...film.trace.prompt, ...film.committed(index)];
  const shares = new Map(layers[layer].filter(([position]) => position < tokens.length - 1));
  box.append(choice, make("p", "note", ...strongest(tokens, shares)), tinted(tokens, shares), make("p", "note", words.lookedHelp));
  return box;
}

// The first token is left out: attention that has nothing to read rests there.
function strongest(tokens, shares) {
  const best = [...shares].filter(([position]) => position).sort((a, b) => b[1] - a[1]);
  const named = best
    .slice(0, 3)
    .flatMap(([position, share], i) => [i ? ", " : " ", quoted(tokens[position].text), ` ${percent(share)}`]);
  const resting = shares.get(0);
  return [words.most, ...named, resting ? `, ${words.resting(percent(resting))}` : "."];
}

function tinted(tokens, shares) {
  const most = Math.max(...[...shares].map(([position, share]) => (position ? share : 0)), 0.01);
  const text = make("p", "tinted");
  text.dir = "auto";
  tokens.forEach(({ text: piece }, position) => {
    const node = make("span", position === tokens.length - 1 ? "last" : "", readable(piece));
    const share = shares.get(position) ?? 0;
    if (share) {
      node.style.setProperty("--share", `${position ? (STRONGEST * share) / most : 0}%`);
      node.title = percent(share);
    }
    text.append(node);
  });
  return text;
}
