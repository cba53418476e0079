// Learn begins once all of its steps are known.
root.addEventListener("spoken", ({ detail }) => speak(detail));
part.before.addEventListener("click", () => openStep(current - 1));
part.after.addEventListener("click", () => openStep(current + 1));
speak(WORDS[document.documentElement.lang] ? document.documentElement.lang : "en");
