/* Searches to start from. Each fills the form as a link would. */

export const EXAMPLES = [
  {
    title: "Fifty endings",
    note: "One beginning, many ways to go on, no two the same.",
    prompt: "The best thing about learning a new language is",
    raw: true,
    settings: { stop: ["."], scoring: "sum" },
  },
  {
    title: "A short story of plans",
    note: "Texts of different lengths, ranked by likelihood per token.",
    prompt: "When I grow up I want to be",
    raw: true,
    settings: { stop: ["."], scoring: "sum", max_new_tokens: 20 },
  },
  {
    title: "Answers to a question",
    note: "In the model's chat format; each answer is one sentence.",
    prompt: "Name a colour and say why you like it.",
    raw: false,
    settings: { stop: ["."] },
  },
  {
    title: "Words that must come in",
    note: "Every text holds the given words, in any order.",
    prompt: "Write a short sentence with the words fish, swim and lake.",
    raw: false,
    settings: { must_include: ["fish", "swim|swims|swimming", "lake"], stop: ["."] },
  },
  {
    title: "Three methods side by side",
    note: "Best-k search, beam search and sampling at the same budget.",
    view: "compare",
    prompt: "The best thing about having a dog is",
    raw: true,
    settings: { stop: ["."], max_new_tokens: 20 },
    lanes: [
      { method: "BKS", settings: {} },
      { method: "BS", settings: {} },
      { method: "Ncls0.8", settings: {} },
    ],
  },
  {
    title: "What the decay does",
    note: "The same search with and without a preference for newer nodes.",
    view: "compare",
    prompt: "The easiest way to save money is",
    raw: true,
    settings: { stop: ["."], max_new_tokens: 20 },
    lanes: [
      { method: "BKS", settings: {} },
      { method: "BKS", settings: { decay: "none" } },
    ],
  },
];
