// Which words of a text a search has found, as the search service reads words: letters and digits, without case and accents.

import { element } from "./shared.js";

const EXCERPT = 160; // characters of a long text
const BEFORE = 40; // of these before the first word found
const PLAIN = { ł: "l", ø: "o", đ: "d", ß: "ss", æ: "ae", œ: "oe", ı: "i", þ: "th" }; // what has no accent to take away

const fold = (word) => word.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().replace(/[łøđßæœıþ]/g, (sign) => PLAIN[sign]);
const wordsOf = (text) => text.match(/[\p{L}\p{N}]+/gu) ?? [];

/** Words of a search as predicates over a word and its column; none of those that a row must be without. */
export function wantedWords(text, columns) {
  const names = new Set(columns.map((column) => column.name));
  const found = [];
  for (const [, minus, name, phrase, word] of text.matchAll(/(-?)(?:([^\s":]+):)?(?:"([^"]*)"|([^\s"]+))/g)) {
    if (minus) continue;
    const only = names.has(name) ? name : null;
    const said = `${name && !only ? `${name} ` : ""}${phrase ?? word}`;
    const begins = phrase === undefined && said.endsWith("*");
    for (const each of wordsOf(said).map(fold)) {
      found.push((folded, column) => (only === null || only === column) && (begins ? folded.startsWith(each) : folded === each));
    }
  }
  return found;
}

/** The text's parts, those found as marks; of a long one the part around the first of these. `any`: whether there is one. */
export function marked(text, column, wanted) {
  const places = [...text.matchAll(/[\p{L}\p{N}]+/gu)].filter(([word]) => wanted.some((isIt) => isIt(fold(word), column)));
  const first = places[0]?.index ?? 0;
  const from = text.length > EXCERPT && first > BEFORE ? first - BEFORE : 0;
  const until = Math.min(text.length, from + EXCERPT);
  const parts = [from > 0 ? "…" : ""];
  let at = from;
  for (const place of places) {
    const [word] = place;
    if (place.index < at || place.index + word.length > until) continue;
    parts.push(text.slice(at, place.index), element("mark", "", word));
    at = place.index + word.length;
  }
  parts.push(text.slice(at, until), until < text.length ? "…" : "");
  return { parts, any: places.length > 0 };
}
