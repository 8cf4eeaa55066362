// What verifications have found of a table: in a sentence, by its leaves, and the repair of those that differ.

import { $, addressOf, ask, confirmed, count, duration, element, numberCell, ofSource, pill, tablePath } from "./shared.js";

export const COVERAGE_WORDS = { proven: "equal", unproven: "unproven", differs: "differs", unprovable: "unprovable", never: "never verified" };

/** What is known of a table in a sentence. */
function sentence(proof) {
  const { verdict, proof: last } = proof;
  if (!verdict) return proof.unprovable ? "It was never verified." : "It was never verified. Verify it now, or let it have its turn by a schedule.";
  if (verdict.verdict === "equal" && proof.state === "equal") {
    return `Equal to the source${verdict.position && ` at ${verdict.position}`}, ${duration(verdict.age_us)} ago, ${count(verdict.source_rows)} rows.`;
  }
  const before = last ? ` It was equal ${duration(last.age_us)} ago${last.position && `, at ${last.position}`}.` : "";
  const found = proof.state === "differs" ? "Differs from the source" : "It is not known whether it is equal";
  return `${found}, ${duration(verdict.age_us)} ago: ${verdict.reason}.${before}`;
}

/** Which rows a leaf is of: one key, keys between two bounds, or all. */
function leafRows(leaf) {
  if (leaf.key) return leaf.key;
  const bounds = [leaf.lower && `above ${leaf.lower}`, leaf.upper && `up to ${leaf.upper}`].filter(Boolean);
  return bounds.length ? bounds.join(" ") : "all";
}

const leafCounts = (verdict) => [["equal", verdict.leaves_equal], ["differ", verdict.leaves_differ], ["unknown", verdict.leaves_unknown]]
  .filter(([, number]) => number);

/** Parts of the table that were compared, as wide as there are many: one that differs is always seen. */
function showLeafBar(verdict, words) {
  $("leaf-bar").hidden = !words;
  $("leaf-bar").setAttribute("aria-label", words);
  $("leaf-bar").replaceChildren(...(words ? leafCounts(verdict) : []).map(([word, number]) => {
    const part = element("span", word);
    part.style.flexGrow = number;
    return part;
  }));
}

export function showProof(proof, verdicts) {
  const { verdict } = proof;
  $("proof-state").replaceChildren(pill(proof.coverage, COVERAGE_WORDS[proof.coverage]));
  $("all-proofs").href = addressOf("/proof");
  $("sentence").textContent = sentence(proof);
  const counts = verdict ? leafCounts(verdict).map(([word, number]) => `${count(number)} ${word}`).join(", ") : "";
  const leaves = counts && `Parts of the table that were compared: ${counts}`;
  showLeafBar(verdict, leaves);
  $("facts").replaceChildren(...[
    leaves,
    verdict && verdict.source_rows !== verdict.lake_rows && `${count(verdict.source_rows)} rows at the source, ${count(verdict.lake_rows)} in the lake`,
    verdict && `In the lake ${verdict.lake}, up to cut ${count(verdict.cut)}`,
    proof.verification && "A verification runs: its verdict comes here by itself",
    proof.unprovable && `It can't be verified now: ${proof.unprovable}`,
    proof.state === "differs" && "A repair reads what differs again; where it can't, a resync brings all rows",
  ].filter(Boolean).map((words) => element("li", "", words)));
  $("verify-table").disabled = Boolean(proof.verification || proof.unprovable);
  $("repair-table").hidden = proof.state !== "differs" || Boolean(proof.verification);
  showLeaves(proof.state === "differs" ? verdicts.find((each) => each.leaves.length) : null);
  $("history-part").hidden = !verdicts.length;
  $("history").replaceChildren(...verdicts.map((each) => element("li", "",
    pill(each.verdict === "equal" ? "proven" : each.verdict === "differs" ? "differs" : "unproven", each.verdict),
    element("span", "muted", `${duration(each.age_us)} ago`),
    element("span", "", each.reason || `${count(each.source_rows)} rows`),
    element("span", "muted mono", each.position))));
}

function showLeaves(differing) {
  $("leaves-part").hidden = !differing;
  $("leaves").replaceChildren(...(differing?.leaves ?? []).map((leaf) => element("tr", "",
    element("td", "name mono", leafRows(leaf)),
    numberCell("Columns", leaf.columns || (leaf.key ? "not known" : "–")),
    numberCell("At the source", count(leaf.source_rows)),
    numberCell("In the lake", count(leaf.lake_rows)))));
  const more = differing ? differing.leaves_differ - differing.leaves.length : 0;
  $("more-leaves").textContent = more > 0 ? `${count(more)} more differ; the lake's _menura/validation has all of them.` : "";
}

const keyWords = (numbers) => (numbers.length === 1 ? `${numbers[0]}` : `(${numbers.join(", ")})`);

/** Shows what a repair of the table would read again, and orders it if somebody says so. */
export async function repair(table) {
  const [path, source] = [`${tablePath(table)}/repair`, ofSource()];
  const plan = await ask(`${path}?dry_run=true`, {});
  const ranges = plan.ranges.map((range) => {
    const bounds = [range.above.length && `above ${keyWords(range.above)}`, range.up_to.length && `up to ${keyWords(range.up_to)}`];
    return `${plan.key.join(", ")} ${bounds.filter(Boolean).join(" ") || "of all rows"}: about ${count(range.estimated_rows)} rows`;
  });
  const words = "They are then in the lake as they are at the source, beside the stream; no other row is read or changed. " +
    `Afterwards ${plan.verifies === "ranges" ? "these ranges are" : "the whole table is"} compared again.`;
  const title = `About ${count(plan.estimated_rows)} rows would be read again at the source`;
  if (!(await confirmed(source, title, words, "Read them again", { facts: ranges, isSafe: true }))) return "Nothing was changed.";
  await ask(path, {});
  return `${table.database}.${table.table}: The repair has begun. A verification follows it by itself.`;
}
