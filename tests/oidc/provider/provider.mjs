// An OpenID provider on this machine: whoever names themselves is believed, and nobody is asked
// whether the pages may know who it is. What it is told stands in PROVIDER, as JSON.

import { createServer } from "node:http";

import Provider from "oidc-provider";

const told = JSON.parse(process.env.PROVIDER);
let answer;
const server = createServer((request, response) => answer(request, response));
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: told.clients,
    jwks: told.jwks,
    cookies: { keys: ["for these tests alone"] },
    claims: { openid: ["sub"], email: ["email", "email_verified"] },
    conformIdTokenClaims: false, // ID tokens have them, as those of most providers
    ttl: { AccessToken: 600, AuthorizationCode: 60, Grant: 600, IdToken: 600, Interaction: 600, Session: 600 },
    findAccount: (context, id) => ({
      accountId: id,
      claims: () => ({
        sub: id,
        email: `${id}@example.com`,
        email_verified: !id.startsWith("unverified"),
      }),
    }),
    async loadExistingGrant({ oidc }) {
      const grant = new provider.Grant({
        clientId: oidc.client.clientId,
        accountId: oidc.session.accountId,
      });
      grant.addOIDCScope("openid profile email");
      await grant.save();
      return grant;
    },
  });
  answer = provider.callback();
  console.log(`issuer ${issuer}`);
});
