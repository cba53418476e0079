// Traces from elsewhere: recorded ones that came with the page, files that are opened; and the way back into a file.
function openTrace(trace, from) {
  show();
  part.stale.hidden = true;
  Object.assign(shown, { recorded: true, from });
  load(new Film(trace));
  startRace(null);
  sayOrigin();
  refresh();
}

function sayOrigin() {
  part.origin.hidden = !shown.recorded;
  if (shown.recorded) say(part.origin, words.origin(shown.from()));
}

async function openFile(file) {
  part.fileError.hidden = true;
  try {
    if (file.size > MOST_BYTES) throw new TraceError(words.tooLarge(MOST_BYTES / 1e6));
    openTrace(parseTrace(await file.text()), () => file.name);
  } catch (error) {
    if (!(error instanceof TraceError) && error.name !== "NotReadableError") throw error;
    say(part.fileError, words.notOpened(file.name, error instanceof TraceError ? error.message : words.unreadable));
    part.fileError.hidden = false;
  }
}

part.file.addEventListener("change", () => {
  const [file] = part.file.files;
  part.file.value = ""; // so that the same file can be opened again
  if (file) openFile(file);
});

part.download.addEventListener("click", () => {
  const { rounds, trace: { key, lane, beat, ...whole } } = player.film;
  const trace = { ...whole, rounds, pending: [], status: whole.status === "done" ? "done" : "stopped" };
  const link = make("a", "");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(trace)], { type: "application/json" }));
  link.download = `mtp-trace-${trace.task}-${trace.drafter}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
});

const { recorded } = given;
part.recordedBox.hidden = recorded.length === 0;

function listRecorded() {
  const chosen = Math.max(0, part.recorded.selectedIndex);
  part.recorded.replaceChildren(...recorded.map((trace, i) => new Option(nameOf(trace), i)));
  part.recorded.selectedIndex = chosen;
}

function nameOf({ task, drafter, input }) {
  return words.recordedName(words.task[task], words.lane[drafter], firstWords(input));
}

const NAMED = 40; // characters of a text that stand for it

// Whole words, where there are any; else whole characters.
function firstWords(text) {
  const line = text.trim().replace(/\s+/g, " ");
  const characters = [...line];
  if (characters.length <= NAMED) return line;
  const begins = characters.slice(0, NAMED).join("");
  const whole = characters[NAMED] === " " ? begins : begins.replace(/ [^ ]*$/, "");
  return `${whole.replace(/[\s.,:;!?]+$/, "")}…`;
}

part.openRecorded.addEventListener("click", () => {
  const trace = recorded[part.recorded.value];
  openTrace(parseTrace(JSON.stringify(trace)), () => nameOf(trace));
  if (isStill()) return;
  go(0);
  play();
});
