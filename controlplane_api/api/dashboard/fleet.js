// Agents of a tenant, and the token that enrols a further one.

import {
  $, ago, ask, button, bytes, confirmed, count, drawRows, duration, element, filtering, instant, numberCell, ofTenant, openPage, pager, pill,
  place, tell, tenantPath,
} from "./shared.js";

const PAGE_AGENTS = 100;
const SECOND_MS = 1000;
const REVOCATION = "Its streams end within a second, and it is refused from then on. To bring it back, enrol it with a token that names it.";

const pages = pager();
let token = null; // that was made last: id and expires_at_us, until its drawer is closed

function status(agent) {
  if (agent.revoked_at_us !== null) return pill("gone", "revoked");
  if (agent.problem) return pill("refused", agent.problem.code);
  return agent.connected ? pill("connected") : pill("gone", "not connected");
}

/** What is desired of a source beside what of it runs. */
function configurationWords(each) {
  const asked = `generation ${each.generation} is asked since ${ago(each.changed_at_us)}`;
  if (each.state === "applied") return element("span", "muted", `${each.source}: generation ${each.effective_generation} runs, as asked`);
  const runs = each.effective_generation ? `generation ${each.effective_generation} runs` : "none runs";
  return element("span", each.state === "refused" ? "problem" : "notice", `${each.source}: ${asked}, ${runs}. ${each.message}`);
}

function configurationCell(agent) {
  const { configurations: shown, configured_sources: number } = agent;
  const more = number > shown.length ? element("span", "muted", `and ${count(number - shown.length)} more, of which those not met come first`) : "";
  const none = shown.length ? "" : element("span", "muted", "of its own file");
  return element("td", "configuration", ...shown.map(configurationWords), more, none);
}

function certificateCell(agent) {
  const { certificate_expires_at_us: until, enrolled_at_us: enrolled } = agent;
  const left = until === null ? null : until - Date.now() * 1000;
  const words = left === null ? "–" : left > 0 ? `good for ${duration(left)}` : `over since ${ago(until)}`;
  const cell = numberCell("Certificate", words, enrolled === null ? "" : element("span", "detail", `enrolled ${instant(enrolled)}`));
  if (left !== null && left <= 0) cell.classList.add("bad");
  return cell;
}

function rowOf(agent) {
  const seen = agent.connected ? "now" : ago(agent.seen_at_us);
  const name = agent.agent;
  return {
    key: name,
    seen: [agent.version, agent.hostname, agent.sources, agent.problem, agent.connected, agent.revoked_at_us, agent.enrolled_at_us, seen,
      agent.resident_memory_bytes, agent.certificate_expires_at_us, duration(agent.certificate_expires_at_us - Date.now() * 1000),
      agent.configurations.map((each) => [each, ago(each.changed_at_us)])],
    cells: () => [
      element("td", "name", element("b", "", name), element("span", "muted", agent.hostname),
        agent.problem ? element("span", "problem", agent.problem.message) : "",
        element("span", "muted", agent.sources.length ? `Sources: ${agent.sources.join(", ")}` : "No source yet")),
      element("td", "state", status(agent)),
      element("td", "version", agent.version),
      configurationCell(agent),
      numberCell("Last contact", agent.seen_at_us ? seen : "–"),
      numberCell("Memory", bytes(agent.resident_memory_bytes)),
      certificateCell(agent),
      element("td", "command", agent.revoked_at_us === null ? revokeButton(name) : ""),
    ],
  };
}

function revokeButton(name) {
  const tenant = ofTenant();
  return button("Revoke", `Revoke ${name}`, async (pressed) => {
    if (!(await confirmed(tenant, `Revoke ${name}?`, REVOCATION, "Revoke it"))) return;
    tell(pressed, async () => {
      await ask(`${tenant.path}/agents/${encodeURIComponent(name)}/revoke`, {});
      return "Revoked.";
    }, { of: name });
  });
}

async function makeToken() {
  const agent = $("agent-name").value || null;
  token = await ask(`${tenantPath()}/tokens`, { agent, ttl_seconds: Number($("token-ttl").value) });
  $("line").textContent = `menura agent enrol --config agent.yaml --gateway ${$("gateway").value} --token ${token.token}`;
  token.token = "";
  $("made").hidden = false;
  $("make-token").hidden = true;
  $("copy").textContent = "Copy";
  countDown();
  $("copy").focus();
}

/** How long the token is good, while its drawer is open. */
function countDown() {
  if (token === null) return;
  const left = token.expires_at_us - Date.now() * 1000;
  $("countdown").textContent = left > 0 ? `Good for ${clock(left)}, once.` : "The token is over. Close this, and make another one.";
  if (left > 0) setTimeout(countDown, SECOND_MS);
}

function clock(us) {
  const seconds = Math.ceil(us / 1e6);
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  return [hours, minutes, rest].map((part) => String(part).padStart(2, "0")).join(":");
}

async function showToken(get) {
  if (token === null) return;
  const found = (await get(`${tenantPath()}/tokens?limit=100`)).tokens.find((each) => each.id === token?.id);
  if (found?.used_by) $("token-state").textContent = `It has enrolled the agent ${found.used_by}.`;
}

function open() {
  $("make-token").hidden = false;
  $("made").hidden = true;
  $("token-state").textContent = "";
  $("enrolment-title").textContent = `Add an agent to the tenant ${place.tenant}`;
  $("enrolment").showModal();
}

$("add-agent").addEventListener("click", open);
$("make-token").addEventListener("submit", (event) => {
  event.preventDefault();
  tell(event.submitter, async () => { await makeToken(); return ""; }, { into: "token-outcome" });
});
$("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText($("line").textContent);
  $("copy").textContent = "Copied";
});
filtering(pages, "which");
$("enrolment-end").addEventListener("click", () => $("enrolment").close());
$("enrolment").addEventListener("close", () => {
  token = null;
  $("line").textContent = "";
});

openPage({
  moved: () => pages.first(),
  read: async (get) => {
    await showToken(get);
    const query = new URLSearchParams({ text: $("text").value, limit: PAGE_AGENTS, cursor: pages.cursor() });
    if ($("which").value) query.append("state", $("which").value);
    return get(`${tenantPath()}/agents?${query}`);
  },
  show: ({ agents, total, connected, next_cursor: next }) => {
    drawRows($("agents"), agents.map(rowOf));
    $("agents-total").textContent = `${count(connected)} of ${count(total)} connected`;
    $("none").hidden = agents.length > 0;
    $("none").textContent = total ? "No agent is so." : "No agent has called yet. Add one: it dials out to the gateway, and appears here by itself.";
    pages.show(next);
  },
});
