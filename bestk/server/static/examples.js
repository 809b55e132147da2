/* What to start from. Each fills the form as a link would. */

export const EXAMPLES = [
  {
    note: "A slogan",
    prompt: "Write a tagline for a bakery.",
    raw: false,
    settings: {},
  },
  {
    note: "An answer to choose",
    prompt: "What is the best thing about having a dog?",
    raw: false,
    settings: { max_new_tokens: 80 },
  },
  {
    note: "An ending",
    prompt: "When I grow up I want to be",
    raw: true,
    settings: { stop: ["."], max_new_tokens: 20 },
  },
  {
    note: "Words that must come in",
    prompt: "Write a short sentence with the words fish, swim and lake.",
    raw: false,
    settings: { must_include: ["fish", "swim|swims|swimming", "lake"] },
  },
  {
    note: "Everything the search finds",
    prompt: "The best thing about learning a new language is",
    raw: true,
    settings: { num_texts: null, max_new_tokens: 30, stop: ["."], scoring: "sum" },
  },
  {
    note: "Side by side: three ways to get ten answers",
    view: "compare",
    prompt: "Write a tagline for a bakery.",
    raw: false,
    settings: {},
    lanes: [
      { method: "BKS", settings: {} },
      { method: "BS", settings: {} },
      { method: "Ncls0.8", settings: {} },
    ],
  },
];
