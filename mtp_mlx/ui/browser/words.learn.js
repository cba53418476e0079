// What Learn says, in English.
WORDS.en.learn = {
  nav: "Steps",
  before: "← Back",
  after: "Next →",
  task: "Try it:",
  again: "Again",
  asked: ({ task, input }) => `${task === "proofread" ? "To correct" : "To sum up"}: ${input}`,
  machine: ({ cores, processor, system }) => `a ${cores}-core ${processor} machine with ${system}`,
  steps: [
    {
      title: "One token per pass",
      text: ({ weights, pass, machine }) =>
        `A language model looks at the text so far and gives every token that it knows a chance to be next. The likeliest one is written, and the model reads again. Each token costs one pass, and each pass reads all ${weights} of the weights, whatever the token: ${pass} on ${machine}, where all that you see here was recorded.`,
      task: "write the whole sentence. Count the passes, and look for tokens that you could have told beforehand.",
    },
    {
      title: "Drafts",
      text: ({ step, pass }) =>
        `Much of a text is easy to guess. A small drafter guesses the next four tokens, one after another, at ${step} a guess instead of ${pass} a pass. Below each guess is how sure the drafter is.`,
      task: "bet how many of the guesses the model will keep.",
    },
    {
      title: "Verification",
      text: ({ wide, pass }) =>
        `One pass of the model over all the guesses says, for each place, what the model writes there itself. It takes ${wide} with eight rows, which are the last token and room for seven guesses, and ${pass} with one. Guesses stay as long as they are the model’s own choice. The first other one goes, with all behind it, and the model’s token takes its place. So every token is the model’s, and no drafter can change the text.`,
      task: "change the drafter. The passes change; does the text? Choose a pass to see it row by row: what the model chose in bold is what was written.",
    },
    {
      title: "A frozen model and its head",
      text: ({ size, layers, read, weights, head }) =>
        `The model is frozen: nothing in it was trained for this. The head (${head} beside ${weights}) starts from the model’s last state, ${size} numbers that say where the text is going, and looks things up in the keys and values that the model has stored of the text anyway, in layers ${read.join(" and ")} of 0 to ${layers - 1}.`,
      task: "choose a guess, and see what the head was looking at. Where does it copy?",
    },
    {
      title: "One memory of the text, not two",
      text: () =>
        "The model keeps keys and values of every token, in its KV cache. The head reads them where they are: no copy, and no second reading of the text. A standalone drafter is a model of its own, with embeddings, a KV cache and a reading of its own. These are the bytes of the two that are in this repository.",
      task: "pull the context up. What grows with the text, on which side?",
    },
    {
      title: "How many guesses pay",
      text: ({ machine, step }) =>
        `A guess costs ${step}, and more rows make a pass longer. Both were measured on ${machine}. A guess counts only if all guesses before it were right. So each further one tends to bring less. Where it brings less than it costs, it does not pay.`,
      task: "pull the chance down. Where does guessing stop paying, and when are no guesses best?",
    },
    {
      title: "A text that is hard to guess",
      text: () =>
        "A guess can fail because the model itself hesitates between words, or because the drafter does not know what the model is about to write. The columns say how sure the model was of each token that it wrote.",
      task: "compare the two texts, and find a token of which the model was sure, and that the head got wrong all the same.",
    },
    {
      title: "Fault lab",
      text: () =>
        "Speculative decoding is easy to get almost right. Each switch turns on a bug that real programs have had; both texts were written by the real model, one with the bug and one without. Or run a bug on a text of your own.",
    },
  ],
  onePass: "One more pass",
  somePasses: (count) =>
    count > 1 ? `${count} passes, the prompt’s included, ${count} tokens.` : count ? "The prompt’s pass, 1 token." : "No pass yet.",
  allPasses: (count) => `${count} passes, the prompt’s included, for ${count} tokens. The last token is not seen: it says that the text ends.`,
  whatItThought: (pass) => `What the model thought of in ${pass ? `pass ${pass}` : "the prompt’s pass"}`,
  bet: "How many will stay?",
  betJudged: (bet, kept) => `${bet === kept ? "Right" : "Not quite"}: the model kept ${kept}.`,
  betScore: (right, of) => `You were right ${right} of ${of} times.`,
  nextDraft: "Next draft",
  drafter: "Drafter",
  sameText: ({ passes, tokens, equal }) =>
    `${passes} passes, the prompt’s included, for ${tokens} tokens. ${equal ? "All token ids are those of plain decode." : "The token ids are not those of plain decode: something is wrong."}`,
  onePassRows: (pass, rows) => (pass ? `Pass ${pass}: ${rows} row${rows === 1 ? "" : "s"} at once` : "The prompt’s pass: its last row"),
  rowHeads: ["Guess", "The model’s choice", "So it is"],
  ownToken: "the model’s own",
  guesses: "All guesses of this run",
  memoryOf: { head: "The head", standalone: "A standalone drafter" },
  context: "Context",
  contextTokens: (tokens) => `${tokens.toLocaleString("en")} tokens`,
  entry: {
    "MTP head": "the head’s weights",
    "draft vocabulary": "its output rows",
    "standalone drafter": "its weights",
    "its embeddings": "its embeddings",
    "its KV cache": "its own KV cache",
    "its draft vocabulary": "its output rows",
  },
  adds: (what, sum) => `${what} adds ${sum}`,
  caches: ({ cache, second }) =>
    `The model’s own KV cache takes ${cache} at this length, either way. The head keeps 0 bytes of the text; the standalone drafter keeps ${second}.`,
  acceptanceOf: "Chance that a guess is right",
  measuredTask: { proofread: "Proofreading, as measured", summarize: "Summaries, as measured" },
  ownChance: "My own",
  chance: "My own chance for each guess",
  chartHelp: "Tokens a second by the number of guesses in a pass, reckoned from those costs.",
  best: ({ best, rate, times }) =>
    best
      ? `${best} guess${best === 1 ? "" : "es"} a pass ${best === 1 ? "is" : "are"} best: ${rate} tokens a second, ${times} times plain decode.`
      : `No guesses are best: ${rate} tokens a second. Whatever is guessed costs more than it brings.`,
  twoTexts: "Text",
  unsureHelp: "✓ was a guess that stayed; ↻ and + are the model’s own tokens, and ✗ is what was guessed instead.",
  unsure: ({ passes, tokens, drafted, kept, mean, share }) =>
    `${kept} of ${drafted} guesses stayed: ${passes} passes, the prompt’s included, for ${tokens} tokens. The model was ${mean} sure on average, and ${share} of the time went into guessing.`,
  sides: ["As it should be", "With the bug"],
  endsHere: "■ ends here",
  firstDifference: "first difference:",
  culprit: "The pass where it shows:",
  ownText: "Your text, as it is typed under Watch:",
  noText: "Nothing is typed there yet.",
  changeText: "Change the text",
  tryIt: "Run this bug on my text",
  stopIt: "Stop",
  lanes: ["First without the bug.", "Now with the bug."],
  triedWith: ({ drafter, draft_length: length, max_tokens: most }) =>
    `Run here and now: ${WORDS.en.lane[drafter]}, ${length} guess${length === 1 ? "" : "es"} a pass, at most ${most} tokens.`,
  shows: "On this text the fault shows.",
  shownNot: (why) => `On this text the fault changes nothing: ${why}`,
  unchanged: {
    none: () => "nothing was guessed. Choose a drafter under Watch, and a draft length above 0.",
    first: () => "the text ended with its first token, before anything could be guessed.",
    end: () => "no end of text was guessed before the last pass.",
    budget: ({ charged, most }) => `before the last pass ${charged} of the ${most} allowed tokens had been charged for.`,
    penalty: ({ drafted }) => `${drafted} guesses were taken for written, and the model chose the same tokens all the same.`,
    stale: ({ thrown }) =>
      thrown
        ? `${thrown} rejected guesses stayed in the cache, and the model chose the same tokens all the same.`
        : "no guess was thrown away before the last pass, so that nothing stale could be read.",
    emoji: () => "no pass before the last one ended in the middle of a character.",
  },
  faults: {
    end: {
      title: "A drafted end of text stops",
      why: "The drafter guessed <|im_end|>, and the program stopped there and then. Only an end that the model has verified may stop a text.",
    },
    budget: {
      title: "The budget is counted in drafts",
      why: "Twenty tokens were allowed. The program charged for every guess, those thrown away too, and the budget was gone in the middle of the sentence. Only what is kept may count.",
    },
    penalty: {
      title: "A penalty sees rejected drafts",
      why: "The model is to avoid words that it has written before. The program took every guess for written, so the model avoided the very words that it wanted. Each row may only see the text that leads to it.",
    },
    stale: {
      title: "Stale keys and values after a rejection",
      why: "The rejected guesses were not rolled back: their keys and values stayed in the cache, and from then on the model read words that nobody had written.",
    },
    emoji: {
      title: "A split emoji",
      why: "The token ids are the same. An emoji is several tokens here, and a pass can end in the middle of one. The program showed each pass by itself, so no part was a whole character. Bytes must wait until they are whole.",
    },
  },
};
