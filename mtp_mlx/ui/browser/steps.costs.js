// The steps that are told on measurements: what drafting takes in memory, and the draft length that pays.

function stepMemory(piece) {
  const { memory } = lessons;
  const shared = new Set(Object.keys(memory[0].head).filter((name) => memory[0].standalone[name] === memory[0].head[name]));
  shared.delete("draft vocabulary");
  const sums = (entries) => Object.entries(entries).filter(([name]) => !shared.has(name));
  const most = Math.max(...memory.map(({ standalone }) => total(sums(standalone))));
  const rows = ["head", "standalone"].map((name) => ({
    name,
    title: make("h3", ""),
    bar: make("div", "stack"),
    parts: make("ul", "parts note"),
  }));
  const common = line();
  const { node, follow } = slider(words.learn.context, { min: 0, max: memory.length - 1, step: 1, value: 3 }, (i) => {
    for (const { name, title, bar, parts } of rows) {
      const entries = sums(memory[i][name]);
      entries.forEach(([entry, bytes], k) => {
        const block = bar.children[k] ?? bar.appendChild(make("span", ""));
        block.style.inlineSize = `${(100 * bytes) / most}%`;
        say(parts.children[k] ?? parts.appendChild(make("li", "")), `${words.learn.entry[entry]} ${mebibytes(bytes)}`);
      });
      say(title, words.learn.adds(words.learn.memoryOf[name], mebibytes(total(entries))));
    }
    const cache = memory[i].head["KV cache"];
    const second = memory[i].standalone["its KV cache"];
    say(common, words.learn.caches({ cache: mebibytes(cache), second: mebibytes(second) }));
    return words.learn.contextTokens(memory[i].tokens);
  });
  piece.append(node);
  for (const { title, bar, parts } of rows) piece.append(title, bar, parts);
  piece.append(common);
  follow();
}

function total(entries) {
  return entries.reduce((sum, [, bytes]) => sum + bytes, 0);
}

// Tokens a second by draft length: as costs.py reckons, from what was measured.
function rates(chances) {
  const { passes, step } = lessons.costs.mtp;
  const rate = (length) => {
    let [tokens, all] = [1, 1];
    for (const chance of chances.slice(0, length)) tokens += all *= chance;
    return tokens / (passes[length + 1] + length * step);
  };
  return Array.from({ length: chances.length + 1 }, (_, length) => rate(length));
}

function stepLength(piece) {
  const { acceptance } = lessons;
  const tasks = Object.keys(acceptance.mtp);
  const [chart, result] = [make("div", ""), line()];
  const most = Math.max(...rates(Array(7).fill(1)));
  const draw = (chances) => {
    const all = rates(chances);
    const best = all.indexOf(Math.max(...all));
    const items = all.map((rate, length) => ({
      value: rate.toFixed(1),
      height: rate / most,
      label: [length === best ? `★ ${length}` : `${length}`],
      className: length === best ? "best" : "",
    }));
    chart.replaceChildren(columns(items));
    say(result, words.learn.best({ best, rate: all[best].toFixed(1), times: (all[best] / all[0]).toFixed(2) }));
  };
  const own = slider(words.learn.chance, { min: 0, max: 100, step: 1, value: 50 }, (chance) => {
    choice.lastChild.firstChild.checked = true;
    draw(Array(7).fill(chance / 100));
    return `${chance} %`;
  });
  const options = [...tasks.map((task) => words.learn.measuredTask[task]), words.learn.ownChance].map((label) => ({ label: [label] }));
  const choice = radios(words.learn.acceptanceOf, options, 0, (i) => (tasks[i] ? draw(acceptance.mtp[tasks[i]]) : own.follow()));
  piece.append(choice, own.node, make("p", "note", words.learn.chartHelp), chart, result);
  draw(acceptance.mtp[tasks[0]]);
}
