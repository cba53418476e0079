// The parts of the page and how text gets into them: what people and models wrote enters through text nodes only.
const root = element.querySelector(".mtp");
const part = Object.fromEntries([...root.querySelectorAll("[data-part]")].map((node) => [node.dataset.part, node]));

const GLYPHS = { pending: "?", accepted: "✓", rejected: "✗", unread: "–", correction: "↻", bonus: "+", plain: "→", first: "▸" };
const MARKS = { " ": "·", "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽" };

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// The same for a text that mostly grows: what is there of it already stays, with whatever is selected in it.
function grow(node, text) {
  const said = node.firstChild;
  if (said && said === node.lastChild && text.startsWith(said.data)) said.appendData(text.slice(said.length));
  else say(node, text);
}

function make(tag, className, ...content) {
  const node = document.createElement(tag);
  node.className = className;
  node.append(...content);
  return node;
}

// Whether nothing is to move by itself, as its user has told the system.
function isStill() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

// Puts the words of the language where the template names them.
function sayWords() {
  root.ariaLabel = words.section;
  for (const node of root.querySelectorAll("[data-word]")) say(node, words[node.dataset.word]);
  for (const node of root.querySelectorAll("[data-state-word]")) say(node, words.state[node.dataset.stateWord]);
  for (const node of root.querySelectorAll("[data-empty-word]")) node.dataset.empty = words[node.dataset.emptyWord];
  for (const node of root.querySelectorAll("[data-label-word]")) node.ariaLabel = words[node.dataset.labelWord];
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

// A line that the server said, in the language of the page where it is known there.
function told(line) {
  for (const [pattern, translated] of words === WORDS.ko ? TOLD_KO : []) {
    const match = pattern.exec(line);
    if (match) return translated(...match.slice(1));
  }
  return line;
}

function percent(share) {
  return share >= 0.995 && share < 1 ? "> 99 %" : share > 0 && share < 0.005 ? "< 1 %" : `${(100 * share).toFixed(0)} %`;
}
