// An OpenID Connect provider for tests: node provider.mjs MODULES PORT REDIRECT_URI SECRET, with new keys at each start.
// Whoever types a login is that person; of which groups says GROUPS.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, port, redirectUri, secret] = process.argv.slice(2);
const { resolve } = createRequire(`${modules}/`);
const { Provider } = await import(pathToFileURL(resolve("oidc-provider")));
const { generateKeyPair, exportJWK } = await import(pathToFileURL(resolve("jose")));

const GROUPS = { ada: ["shop-team"], grace: ["cdc-admins", "unheard-of"], alan: ["night-watch"], mallory: ["unheard-of"] };
const { privateKey } = await generateKeyPair("RS256", { extractable: true });
const key = { ...(await exportJWK(privateKey)), kid: crypto.randomUUID(), use: "sig", alg: "RS256" };

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id: "menura", client_secret: secret, redirect_uris: [redirectUri] }],
  claims: { openid: ["sub"], profile: ["email"], groups: ["groups"] },
  scopes: ["openid", "profile", "groups"],
  conformIdTokenClaims: false,
  cookies: { keys: ["of a test"] },
  jwks: { keys: [key] },
  findAccount: (_context, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@acme.example`, groups: GROUPS[id] ?? [] }),
  }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
