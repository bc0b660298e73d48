// A program that was written from docs/reference/wire.md alone. It prints what it was answered as JSON.
import { createHash, randomUUID } from "node:crypto";
import {
  Client,
  Connection,
  WorkflowExecutionAlreadyStartedError,
  WorkflowFailedError,
  WorkflowUpdateFailedError,
  type WorkflowHandle,
} from "@temporalio/client";
import { CompactSign, calculateJwkThumbprint, importJWK, type JWK } from "jose";

type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
type Members = { [name: string]: Json };
type Given = {
  address: string; taskQueue: string; runId: string; plan: Members; keys: { [name: string]: JWK };
};

const given: Given = JSON.parse(process.env.GIVEN!);
const TENANT = "default";
const sent: { [message: string]: Members[] } = {};

function canonical(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort();
  return `{${members.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

function digest(value: Json): string {
  return "sha256:" + createHash("sha256").update(canonical(value), "utf8").digest("hex");
}

async function sign(typ: string, who: string, runId: string, claims: Members): Promise<string> {
  const jwk = given.keys[who];
  const kid = await calculateJwkThumbprint({ kty: "OKP", crv: "Ed25519", x: jwk.x });
  const iat = Math.floor(Date.now() / 1000);
  const all = {
    aud: `surehand:${TENANT}`, sub: who, iat, exp: iat + 300, jti: randomUUID(), run_id: runId, ...claims,
  };
  return new CompactSign(new TextEncoder().encode(JSON.stringify(all)))
    .setProtectedHeader({ alg: "EdDSA", kid, typ })
    .sign(await importJWK(jwk, "EdDSA"));
}

function noted(message: string, value: Members): Members {
  (sent[message] ??= []).push(value);
  return value;
}

async function start(client: Client, who: string): Promise<WorkflowHandle> {
  const unsigned: Members = {
    run_id: given.runId, tenant: TENANT, user: who, started_by: who, plan: given.plan,
  };
  const claims = { user: who, content: digest(unsigned) };
  const signature = await sign("surehand-start+jws", who, given.runId, claims);
  return client.workflow.start("AgentRun", {
    args: [noted("StartRun", { ...unsigned, signature })],
    workflowId: given.runId,
    taskQueue: given.taskQueue,
    workflowIdReusePolicy: "REJECT_DUPLICATE",
    workflowIdConflictPolicy: "FAIL",
    workflowTaskTimeout: "3 seconds",
    searchAttributes: { RunState: ["running"], Tenant: [TENANT], OpenItems: [0] },
    memo: { plan: `${given.plan.name}` },
  });
}

async function steer(run: WorkflowHandle, verb: string, message: string, value: Members): Promise<string> {
  const claims = { verb, content: digest(value) };
  const signature = await sign("surehand-steering+jws", `${value.actor}`, run.workflowId, claims);
  const args = [noted(message, { ...value, signature })];
  const answer = await run.executeUpdate<{ message: string }, [Members]>(verb, { args: args as [Members] });
  return answer.message;
}

type Request = { approval_id: string; params_hash: string; step_id: string };

async function decision(who: string, seen: Request, signed: Members = {}): Promise<Members> {
  const what = { approval_id: seen.approval_id, params_hash: seen.params_hash, outcome: "approve" };
  const runId = seen.approval_id.split("/").slice(0, -2).join("/");
  const signature = await sign("surehand-decision+jws", who, runId, { ...what, ...signed });
  return { ...what, approver: who, signature };
}

async function decide(run: WorkflowHandle, value: Members): Promise<string> {
  const args = [noted("Decision", value)] as [Members];
  return (await run.executeUpdate<{ code: string }, [Members]>("decide", { args })).code;
}

async function until(run: WorkflowHandle, reached: (view: any) => boolean): Promise<any> {
  for (;;) {
    const view = await run.query<any>("view");
    if (reached(view)) return view;
    if (["completed", "failed", "cancelled"].includes(view.result.state)) throw new Error(JSON.stringify(view));
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

async function refused(work: Promise<unknown>): Promise<string> {
  try {
    return JSON.stringify(await work);
  } catch (error) {
    if (error instanceof WorkflowExecutionAlreadyStartedError) return "already started";
    if (error instanceof WorkflowUpdateFailedError) return (error.cause as any).type;
    if (error instanceof WorkflowFailedError) return (error.cause as any).type;
    throw error;
  }
}

const connection = await Connection.connect({ address: given.address });
const client = new Client({ connection });
const seen: { [what: string]: Json } = {};

const run = await start(client, "uma");
seen.startedAgain = await refused(start(client, "uma"));

const asking = await until(run, (view) => view.interrupts.length === 1);
const [question] = asking.interrupts;
const answers = { [question.interrupt_id]: { shelf: 7 } };
seen.unsignedAnswer = await refused(run.executeUpdate("answer", { args: [{ actor: "uma", answers }] }));
seen.answered = await steer(run, "answer", "AnswerInterrupts", { actor: "uma", answers });

const waiting = await until(run, (view) => view.pending.length === 2);
const [first, second]: Request[] = waiting.pending;
seen.paused = await steer(run, "pause", "PauseRun", { actor: "uma", reason: "lunch" });
await until(run, (view) => view.result.state === "paused_user");
seen.resumed = await steer(run, "resume", "ResumeRun", { actor: "uma" });
await until(run, (view) => view.result.state === "waiting_approval");

const good = await decision("cora", first);
const [header, claims, signature] = `${good.signature}`.split(".");
const changed = (signature[0] === "A" ? "B" : "A") + signature.slice(1);
seen.tampered = await decide(run, { ...good, signature: [header, claims, changed].join(".") });
seen.otherHash = await decide(run, { ...good, params_hash: second.params_hash });
seen.otherRequest = await decide(run, { ...good, approval_id: second.approval_id, params_hash: second.params_hash });
seen.anotherName = await decide(run, { ...good, approver: "uma" });
seen.expired = await decide(run, await decision("cora", first, { iat: 1_700_000_000, exp: 1_700_000_300 }));
seen.withoutRole = await decide(run, await decision("uma", first));
seen.unsigned = await decide(run, { ...good, signature: undefined as unknown as Json });
seen.approved = await decide(run, good);
seen.approvedTwice = await decide(run, good);
const jti = JSON.parse(Buffer.from(claims, "base64url").toString()).jti;
seen.replayed = await decide(run, await decision("cora", second, { jti }));
seen.approvedToo = await decide(run, await decision("cora", second));

const result: any = await run.result();
console.log(JSON.stringify({ seen, sent, view: await run.query<any>("view"), result }));
await connection.close();
