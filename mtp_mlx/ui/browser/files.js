// Traces from elsewhere: recorded ones that came with the page, files that are opened; and the way back into a file.
function openTrace(trace, from) {
  show();
  part.stale.hidden = true;
  shown.recorded = true;
  load(new Film(trace));
  startRace(null);
  say(part.origin, words.origin(from));
  part.origin.hidden = false;
  refresh();
}

async function openFile(file) {
  part.fileError.hidden = true;
  try {
    if (file.size > MOST_BYTES) throw new TraceError(words.tooLarge(MOST_BYTES / 1e6));
    openTrace(parseTrace(await file.text()), file.name);
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
  const { rounds, trace: { rival, ...whole } } = player.film;
  const trace = { ...whole, rounds, pending: [], status: whole.status === "done" ? "done" : "stopped" };
  const link = make("a", "");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(trace)], { type: "application/json" }));
  link.download = `mtp-trace-${trace.task}-${trace.drafter}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
});

const recorded = (props.recorded ?? []).map((text) => JSON.parse(text));
part.recordedBox.hidden = recorded.length === 0;

function listRecorded() {
  part.recorded.replaceChildren(...recorded.map((trace, i) => new Option(words.recordedName(trace), i)));
}

part.openRecorded.addEventListener("click", () => {
  const trace = recorded[part.recorded.value];
  openTrace(parseTrace(JSON.stringify(trace)), words.recordedName(trace));
  go(0);
  play();
});
