"""All that the pages say, in one place."""

from __future__ import annotations

from typing import Final

#: Of a request: what its state means to whoever looks.
STATES: Final = {
    "pending": "Waits for a decision",
    "approved": "Approved",
    "rejected": "Rejected",
    "expired": "Expired: nobody has decided in time",
    "superseded": "Edited: another request asks for the new params",
    "void": "Void: the run stopped asking",
}


#: Of a decision: what somebody has said.
OUTCOMES: Final = {"approve": "Approved", "reject": "Rejected", "edit": "Edited"}


#: Of an effect in doubt: what is on record of it.
DOUBTS: Final = {
    "tool": "Tool",
    "key": "Key of the effect",
    "generation": "generation",
    "provider_key": "Key that the outside system was given",
    "entry": "In the ledger",
    "calls": "Calls",
    "first": "the first one at",
    "error": "What the newest call has ended with",
    "effect.observed": "Looked up before the call",
    "effect.in_doubt": "It came to be in doubt",
    "effect.reconciled": "A way to settle it was chosen",
    "effect.late_receipt": "A receipt has come too late: it is among what the run has kept",
}


class OfPages:
    """What the pages say, by name."""

    product: Final = "Surehand"
    skip: Final = "To the content"
    nav_list: Final = "What waits"
    nav_others: Final = "Questions"
    nav_mine: Final = "My decisions"
    nav_keys: Final = "My key"
    signed_in_as: Final = "Signed in as"
    sign_out: Final = "Sign out"
    no_script: Final = "These pages sign in your browser, so they need JavaScript."
    error_title: Final = "That did not work"
    error_back: Final = "To what waits"
    # signing in
    sign_in_title: Final = "Sign in"
    sign_in_how: Final = "Open a link that the command line prints. It counts once, for 10 minutes:"
    sign_in_button: Final = "Sign in"
    sign_in_whom: Final = "It signs you in as"
    sign_in_ready: Final = "You have opened a link to sign in with. It is used up when you sign in."
    # signing in by an identity provider
    oidc_how: Final = "You sign in at the identity provider of those who run this server:"
    oidc_button: Final = "Sign in with"
    oidc_or_link: Final = "On this machine a link signs you in, too."
    no_links: Final = "This server takes no links: sign in with its identity provider."
    oidc_other_page: Final = "Another page may not sign you in."
    oidc_not_begun: Final = (
        "This sign-in was not begun in this browser, or is over, or was used: begin again."
    )
    oidc_refused: Final = "The identity provider has not signed you in: begin again."
    oidc_other_issuer: Final = "That answer is not of this server's identity provider."
    oidc_bad_code: Final = "The identity provider does not know this sign-in: begin again."
    oidc_bad_token: Final = "What the identity provider says is not for this sign-in: begin again."
    oidc_no_claim: Final = "The identity provider does not say who you are."
    oidc_away: Final = "The identity provider cannot be asked now; the server's log says why."
    no_principal_title: Final = "Nobody here is you"
    no_principal_what: Final = (
        "The identity provider knows you, but no principal is registered for this subject of"
        " this issuer. You are not signed in. Ask an administrator, and name both:"
    )
    no_principal_issuer: Final = "Issuer"
    no_principal_subject: Final = "Subject"
    # the list
    list_title: Final = "What waits for a decision"
    list_none: Final = "Nothing waits for a decision."
    list_mine: Final = "Where my vote can count"
    list_all: Final = "All"
    list_tool: Final = "Tool"
    list_any_tool: Final = "any tool"
    list_says: Final = "The call says"
    list_least: Final = "Amount from"
    list_most: Final = "to"
    list_bad_amount: Final = "an amount is a number such as 12 or 12.50"
    list_none_found: Final = "No call here is like that."
    list_searched: Final = "More wait, and may be like that: a search reads at a time"
    list_unread: Final = "Calls that are encrypted or secret, and could not be searched:"
    list_filter_title: Final = "Filter"
    list_filter: Final = "Show"
    choose: Final = "Choose:"
    several_look: Final = "Look at those that are chosen"
    several_title: Final = "Several at once"
    several_what: Final = (
        "Each call is shown whole, and is approved by a signature of its own. To reject or edit"
        " one, open it."
    )
    several_approve: Final = "Approve all of these"
    list_changed: Final = "Something has changed meanwhile."
    list_anew: Final = "Show the list as it is now"
    list_more: Final = "More"
    list_first: Final = "To the first ones"
    list_asked_by: Final = "asked by"
    list_needs: Final = "needs"
    list_irreversible: Final = "cannot be undone"
    list_foreign: Final = "its run has read content from outside"
    list_you_voted: Final = "you have said yes"
    list_you_asked: Final = "you have asked for it"
    list_sealed: Final = "This call is encrypted, and this server has no keys."
    # one request
    call: Final = "What would run"
    call_drawn: Final = "Drawn and checked by your browser."
    tool: Final = "Tool"
    approval: Final = "Request"
    short_hash: Final = "Short hash"
    params: Final = "Params"
    answers: Final = "Answers of people"
    checking: Final = "Checking what is shown…"
    changes: Final = "What was edited"
    changes_from: Final = "against request"
    facts: Final = "What you should know"
    run: Final = "Run"
    step: Final = "step"
    effect_key: Final = "Key of the effect"
    undo: Final = "How it is undone"
    asked_by: Final = "Asked by"
    edited_by: Final = "Edited by"
    foreign: Final = "Its run has read content from outside, which strangers may have written"
    needs: Final = "Needs"
    not_by: Final = "Not by"
    so_far: Final = "Yes so far"
    nobody: Final = "nobody"
    decisions: Final = "Decisions"
    expires: Final = "Expires"
    expired: Final = "has expired"
    then_again: Final = "Then it is asked again."
    then_escalated: Final = "Then this role is asked:"
    then_rejected: Final = "Then the run ends as if it was rejected."
    precondition: Final = "Precondition"
    precondition_then: Final = "Read when this was asked, at"
    precondition_digest: Final = "its digest:"
    precondition_changed: Final = "It said something else at the request before; its digest then:"
    precondition_alarm: Final = "What its precondition reads has changed since the request before"
    precondition_same: Final = "It said the same at the request before."
    precondition_now: Final = (
        "Only a worker can read what it says now, and does so right before the call. If it says"
        " something else then, the call is not made, and people are asked anew."
    )
    same_key: Final = "What the ledger has under this key"
    generation: Final = "generation"
    said: Final = "What people have said"
    unverified: Final = "unverified"
    story: Final = "The run's story so far"
    story_waits: Final = "Asking the run…"
    hash: Final = "Hash"
    decide: Final = "Decide"
    reason: Final = "Reason"
    reason_hint: Final = (
        "Recorded with your decision. Only a rejection needs one. Where four eyes are asked for,"
        " whoever says why they reject a call can approve no other call of its run."
    )
    approve: Final = "Approve"
    reject: Final = "Reject"
    edit: Final = "Edit…"
    edit_title: Final = "Other params"
    edit_what: Final = (
        "Another request asks for them, and what was said so far does not count for it. Where four"
        " eyes are asked for, neither does your own yes."
    )
    edit_changes: Final = "What you change"
    ask_anew: Final = "Ask for these params"
    what_else: Final = "What else waits"
    web_ui: Final = "This run in Temporal's Web UI"
    you_excluded: Final = (
        "Your own yes does not count: you have asked for this call, or given its run a value."
    )
    you_voted: Final = "You have said yes already. One person has one yes."
    you_lack_role: Final = "You have none of the roles that are asked."
    # what else waits, and runs
    others_title: Final = "Questions, doubts and pauses"
    others_what: Final = "Runs that wait for people, and not for an approval; the newest"
    others_none: Final = "No run asks a question or is paused, and no effect is in doubt."
    run_states: Final = {
        "waiting_input": "asks a question",
        "needs_intervention": "does not know what became of a call",
        "paused_user": "is paused: `resume` in the shell has it go on",
        "paused_budget": "has used up its budget: `top-up` in the shell adds to it",
        "paused_failure": "is paused after a failure: `resume` in the shell tries again",
        "paused_permission": "lacks a permission: `resume` in the shell looks again",
    }
    run_steps: Final = "Steps"
    # what a run has kept
    run_artifacts: Final = "What it has kept"
    artifacts_title: Final = "What a run has kept"
    artifacts_what: Final = (
        "Values over 8 KiB, and what tools have written. Strangers may have written them, so they"
        " are saved as files and never shown here."
    )
    artifacts_none: Final = "This run has kept nothing."
    artifacts_bytes: Final = "bytes"
    artifacts_sealed_hash: Final = "Name by the run's key"
    artifacts_no_part: Final = "An artifact is saved as a file. It is no part of a page."
    artifacts_not_there: Final = "This run has no such artifact."
    artifacts_too_large: Final = "It is too large for this page: `artifacts` has it in the shell."
    artifacts_no_store: Final = "This server has no artifact store."
    # one's own decisions
    mine_title: Final = "What I have decided"
    mine_what: Final = "The newest first. Votes that a standing approval has given are not listed."
    mine_none: Final = "You have decided nothing yet."
    mine_first: Final = "To the newest ones"
    mine_counts: Final = "It counts"
    mine_counts_not: Final = "It does not count"
    mine_hidden: Final = "Its run is hidden or deleted: it has been kept for long enough."
    mine_no_request: Final = "A request that was never made"
    mine_unread: Final = "(what the call says cannot be read here)"
    # keys
    keys_title: Final = "My key"
    keys_what: Final = (
        "A key that this browser makes, and never gives away, signs what you decide. Each"
        " browser has its own."
    )
    keys_none: Final = "This browser has no key of yours yet."
    keys_make: Final = "Make a key"
    keys_forget: Final = "Forget this key"
    keys_public: Final = "Its public half"
    keys_register: Final = "An administrator registers it with:"
    passkeys_title: Final = "Passkeys"
    passkeys_what: Final = (
        "A passkey signs each decision with a gesture: a fingerprint, a face, a PIN. Some calls"
        " ask for one."
    )
    passkeys_make: Final = "Make a passkey"
    keys_registered: Final = "Keys that are registered for you"
    keys_no_registered: Final = "None is registered for you."


OF_PAGES: Final = OfPages()

#: The same for the scripts; `{}` is filled in.
OF_SCRIPTS: Final = {
    "whole": "You decide on exactly this call.",
    "no_params": "The params are encrypted, and this server has no keys: approving is off.",
    "not_exact": "The params cannot be shown exactly ({}): approving is off.",
    "mismatch": "What the server shows is not what it asks you to sign: approving is off. Tell"
    " whoever runs it.",
    "no_key": "This browser has no key of yours: make one under “My key”.",
    "not_registered": "This browser's key is not registered for you yet: see “My key”.",
    "no_passkey": "It takes a passkey of yours that is registered for this page: see “My key”.",
    "passkey_made": "It is made. It counts once it is registered.",
    "no_ed25519": "This browser cannot sign (no Ed25519): {}",
    "unsigned": "Not signed here: marked as unverified.",
    "waits_no_more": "It waits no more.",
    "expired": "It has expired.",
    "sending": "Sending…",
    "signing": "Signing…",
    "accepted": "Your decision counts: {}.",
    "counted": "Decisions that count: {}",
    "refused": "Your decision does not count: {}.",
    "not_taken": "It does not count: {}",
    "left": "It was sent, and counts once a worker is back: {}",
    "lost": "No answer came: look at this page again before you decide once more. ({})",
    "failed": "Nothing was sent: {}",
    "reason_wanted": "Say why you reject it.",
    "no_story": "The run does not answer: {}",
    "empty_story": "Nothing yet.",
    "approval_waits": "Waits for an approval:",
    "question": "It asks (step {})",
    "question_about": "About:",
    "your_answer": "Your answer",
    "answer": "Answer",
    "answered": "Your answer counts: {}",
    "doubt": "Nobody knows what became of a call (step {})",
    "doubt_known": "What is on record",
    "doubt_part": "What was done of it",
    "doubt_elsewhere": "Its own run settles it:",
    "doubt_closed": "There is nothing to settle here any more.",
    "doubt_later": "A call may still arrive. What rules it out can be said from {} on.",
    "outcome": "What has happened",
    "happened": "It happened",
    "not_happened": "It did not happen: call again",
    "call_off": "It did not happen: never call again",
    "compensated": "It happened, and was undone by hand",
    "undo": "It happened: have it undone",
    "give_up": "Nobody can tell: list it as not undone",
    "evidence": "How you know",
    "receipt": "What the call would have returned, as JSON (only if it happened)",
    "settle": "Settle it",
    "settled": "It is settled: {}",
    "waits_for": "Waits for: {}",
    "at_once": "Waits for no other step.",
    "only_when": "Only when: {}",
    "goes_to": "Goes on elsewhere, {}",
    "on_no": "on no",
    "on_failure": "on failure",
    "on_reject": "on a rejection",
    "run_is": "State of the run: {}",
    "bad_link": "The link cannot be used: {}",
    "key_registered": "This browser's key is registered.",
    "key_not_registered": "This browser's key is not registered yet.",
    "forget_sure": "Without it this browser signs nothing any more. Press again to forget it.",
}
