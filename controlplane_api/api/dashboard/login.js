// Logging in: by the secret of a link, which is in the address behind '#', by a token, or at the identity provider.

const $ = (id) => document.getElementById(id);

function say(words) {
  $("failure").textContent = words;
  $("failure").hidden = false;
}

async function open(shown) {
  const answer = await fetch("/api/v1/session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(shown),
    credentials: "same-origin",
  });
  if (answer.ok) {
    location.replace("/");
  } else {
    const facts = await answer.json();
    say([facts.code, facts.found, facts.remedy].filter(Boolean).join(": "));
  }
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  open({ token: $("token").value.trim() });
});

const refused = new URLSearchParams(location.search).get("refused");
const link = location.hash.slice(1);
if (link || refused) history.replaceState(null, "", "/login"); // neither stays in the browser's history
if (refused) say(refused);
if (link) open({ link });

const { provider } = await (await fetch("/api/v1/login", { cache: "no-store" })).json();
if (provider) {
  $("provider-link").textContent = `Log in with ${provider}`;
  $("provider").hidden = false;
}
