// Who may what in a tenant: one's own roles, tokens of the API, and those that enrol agents; and which tenants there are.

import {
  $, addressOf, ask, button, caller, confirmed, count, drawRows, element, filtering, instant, numberCell, ofTenant, openPage, pager, pill,
  place, tell, tenantPath,
} from "./shared.js";

const SHOWN = 100; // the newest of each kind
const TENANTS_SHOWN = 50; // of a page: tables of each are counted
const SEES_TENANTS = new Set(["viewer", "reader", "operator", "admin"]);

const pages = pager();

function state(token) {
  if (token.revoked_at_us !== null) return pill("gone", "revoked");
  if (token.used_by) return pill("done", "used");
  return token.expires_at_us !== null && token.expires_at_us < Date.now() * 1000 ? pill("over") : pill("connected", "good");
}

function rowOf(token, kind, name, whom, question) {
  const shown = state(token);
  const isGood = shown.classList.contains("connected");
  return {
    key: token.id,
    seen: [token, isGood],
    cells: () => [
      element("td", "name", element("b", "", name), element("span", "muted mono", token.id)),
      element("td", "state", shown),
      element("td", "", whom),
      numberCell("Created", instant(token.created_at_us)),
      numberCell("Ends", instant(token.expires_at_us)),
      element("td", "command", isGood ? revokeButton(token, kind, name, question) : ""),
    ],
  };
}

function revokeButton(token, kind, name, question) {
  const tenant = ofTenant();
  return button("Revoke", `Revoke ${name}, ${token.id}`, async (pressed) => {
    if (!(await confirmed(tenant, `Revoke ${name}?`, question, "Revoke it"))) return;
    tell(pressed, async () => {
      await ask(`${tenant.path}/${kind}/${encodeURIComponent(token.id)}/revoke`, {});
      return "Revoked.";
    }, { of: name });
  });
}

async function makeToken() {
  const [name, role] = [$("token-name").value, $("token-role").value];
  const made = await ask(`${tenantPath()}/api-tokens`, { name, role, ttl_seconds: Number($("token-ttl").value) });
  $("secret").textContent = made.token;
  $("made").hidden = false;
  $("token-name").value = "";
  return `${name}: made, good until ${instant(made.expires_at_us)}.`;
}

function forget() {
  $("secret").textContent = "";
  $("made").hidden = true;
}

$("make-token").addEventListener("submit", (event) => {
  event.preventDefault();
  tell(event.submitter, makeToken);
});
$("forget").addEventListener("click", forget);

const isAdmin = ({ grants }) => grants.some(({ role, tenant }) => role === "admin" && [null, place.tenant].includes(tenant));

function showTokens([{ api_tokens: ofApi }, { tokens }]) {
  drawRows($("api-tokens"), ofApi.map((token) => rowOf(token, "api-tokens", token.name, `${token.role}, by ${token.created_by}`,
    "It is good for nothing from now on, and sessions that it has opened end.")));
  drawRows($("enrolment-tokens"), tokens.map((token) => rowOf(token, "tokens", token.used_by || token.agent || "any new agent",
    token.used_by ? `enrolled ${token.used_by}` : token.agent || "any new agent", "It enrols nobody from now on. An agent that it has enrolled stays.")));
  $("no-api-token").hidden = ofApi.length > 0;
  $("no-enrolment-token").hidden = tokens.length > 0;
}

const seesFleet = ({ grants }) => grants.some(({ role, tenant }) => tenant === null && SEES_TENANTS.has(role));

function tenantsPath() {
  const query = { limit: TENANTS_SHOWN, count_tables: true, text: $("text").value, cursor: pages.cursor() };
  return `/api/v1/fleet?${new URLSearchParams(query)}`;
}

function tenantRow(found) {
  return {
    key: found.tenant,
    seen: found,
    cells: () => {
      const link = element("a", "", element("b", "", found.tenant));
      link.href = addressOf("/", { tenant: found.tenant, source: "" });
      return [
        element("td", "name", link),
        numberCell("Agents", count(found.agents)),
        numberCell("Sources", count(found.sources)),
        numberCell("Synced tables", count(found.synced_tables)),
        numberCell("Created", instant(found.created_at_us)),
      ];
    },
  };
}

function showTenants({ tenants, next_cursor: following }) {
  drawRows($("tenants"), tenants.map(tenantRow));
  $("no-tenant").hidden = tenants.length > 0;
  $("no-tenant").textContent = $("text").value ? "No tenant has this in its name." : "There is no tenant yet.";
  pages.show(following);
}

filtering(pages);
openPage({
  moved: () => { forget(); $("outcome").textContent = ""; },
  read: async (get) => {
    const lists = ["api-tokens", "tokens"].map((kind) => `${tenantPath()}/${kind}?limit=${SHOWN}`);
    return [
      caller(),
      isAdmin(caller()) ? await Promise.all(lists.map(get)) : null,
      seesFleet(caller()) ? await get(tenantsPath()) : null,
    ];
  },
  show: ([session, lists, tenants]) => {
    $("grants").replaceChildren(...session.grants.map(({ role, tenant }) =>
      element("li", "", `${session.actor}: ${role} ${tenant ? `of the tenant ${tenant}` : "of the whole fleet"}`)));
    $("no-admin").hidden = lists !== null;
    $("api-section").hidden = $("enrolment-section").hidden = lists === null;
    if (lists !== null) showTokens(lists);
    $("tenants-section").hidden = tenants === null;
    if (tenants !== null) showTenants(tenants);
  },
});
