// Learn: seven steps and the fault lab, one on show at a time; what they show was recorded from the real model.
const runs = Object.fromEntries(Object.entries(given.runs).map(([name, trace]) => [name, new Film(trace)]));
const { lessons } = given;
const STEPS = [stepPass, stepDraft, stepVerify, stepHead, stepMemory, stepLength, stepUnsure, faultLab];
let current = 0;

function openStep(index, { focus = true } = {}) {
  current = index;
  const { title, text, task } = words.learn.steps[index];
  const heading = make("h2", "", index < 7 ? `${index + 1}. ${title}` : title);
  heading.tabIndex = -1;
  const piece = make("div", "piece");
  part.step.replaceChildren(heading, make("p", "", typeof text === "function" ? text(facts()) : text));
  if (task) part.step.append(make("p", "task", make("strong", "", words.learn.task), ` ${task}`));
  part.step.append(piece);
  STEPS[index](piece);
  [...part.steps.children].forEach(({ firstChild: button }, i) => {
    if (i === index) button.ariaCurrent = "step";
    else button.removeAttribute("aria-current");
  });
  part.before.hidden = index === 0;
  part.after.hidden = index === STEPS.length - 1;
  if (focus) heading.focus();
}

// What the texts say in numbers, as it was measured or counted.
function facts() {
  const { model, costs, machine } = lessons;
  const milliseconds = (seconds) => `${Math.round(1000 * seconds)} ms`;
  return {
    weights: mebibytes(model.bytes),
    head: mebibytes(model.head.bytes),
    size: model.size,
    layers: model.layers,
    read: model.head.kv_layers,
    pass: milliseconds(costs.mtp.passes[1]),
    wide: milliseconds(costs.mtp.passes[8]),
    step: milliseconds(costs.mtp.step),
    machine: words.learn.machine(machine),
  };
}

function mebibytes(bytes) {
  const size = bytes / 2 ** 20;
  return `${size.toFixed(size < 10 ? 1 : 0)} MiB`;
}

function speak(language) {
  if (!WORDS[language]) return;
  words = WORDS[language];
  sayWords();
  part.nav.ariaLabel = words.learn.nav;
  part.steps.replaceChildren(
    ...words.learn.steps.map(({ title }, i) => {
      const label = i < 7 ? [make("span", "number", `${i + 1}`), ` ${title}`] : [title];
      return make("li", "", button(label, () => openStep(i)));
    }),
  );
  say(part.before, words.learn.before);
  say(part.after, words.learn.after);
  openStep(current, { focus: false });
}

// Pieces that steps are made of.

function button(label, act) {
  const node = make("button", "", ...label);
  node.type = "button";
  node.addEventListener("click", act);
  return node;
}

function line() {
  const node = make("p", "result");
  node.role = "status";
  return node;
}

// One choice of several: labels are lists of nodes; arrow keys move, and the group is one tab stop.
function radios(legend, options, chosen, act) {
  const group = make("fieldset", "options", make("legend", "hidden", legend));
  const name = `learn-${current}-${part.step.querySelectorAll("fieldset").length}-${group.childNodes.length}-${legend}`;
  options.forEach(({ label, className = "option" }, i) => {
    const input = make("input", "hidden");
    Object.assign(input, { type: "radio", name, checked: i === chosen });
    input.addEventListener("change", () => act(i));
    group.append(make("label", className, input, ...label));
  });
  return group;
}

function slider(label, { min, max, step, value }, act) {
  const input = make("input", "");
  Object.assign(input, { type: "range", min, max, step, value });
  const shown = make("output", "");
  const follow = () => {
    const text = act(Number(input.value));
    say(shown, text);
    input.setAttribute("aria-valuetext", text);
  };
  input.addEventListener("input", follow);
  const node = make("label", "slider", make("span", "", label), input, shown);
  return { node, input, follow };
}

// What a token looks like in a state, as nodes of its own.
function marked([token, state]) {
  const glyph = make("i", "", GLYPHS[state]);
  glyph.ariaHidden = "true";
  return [make("span", "hidden", `${words.state[state]} `), glyph, readable(token.text)];
}

function chips(tokens) {
  return make("span", "tokens", ...tokens.map((one) => make("span", `token ${one[1]}`, ...marked(one))));
}

function written(text) {
  const node = make("p", "text", text);
  node.dir = "auto";
  node.dataset.empty = words.textEmpty;
  return node;
}

// Columns of one chart: what each is, how high of 1, and what stands below it.
function columns(items) {
  const chart = make("ol", "columns");
  for (const { value, height, label, className = "" } of items) {
    const bar = make("span", "bar");
    bar.style.blockSize = `${8 * Math.max(0, Math.min(1, height))}rem`;
    chart.append(make("li", className, make("strong", "", value), bar, make("span", "", ...label)));
  }
  return chart;
}
