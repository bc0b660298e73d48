// Asks Porcupine whether one ledger, doing one thing at a time, could have given the answers that
// clients got. Reads a history from standard input, and prints a report.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	generations = 16 // of one key, in one history
	numbers     = 4  // of approvals of one run
	patience    = time.Minute
	slack       = int64(20 * time.Millisecond) // between this machine's clocks
)

// Input is what a client asks of the ledger.
type Input struct {
	Op         string
	Tenant     string
	Key        string
	Run        int    // one of the two that want the same effect
	Number     int    // of the approval
	Of         int    // the run whose approval that is
	Holder     string // of a claim
	Client     string // the process
	Generation int    // of the entry that the client was told of
	Token      int    // its fencing token
	State      string // its state
	Undo       bool   // it is the entry that undoes, not the one that is undone
	Forward    bool   // after a lookup has found nothing, the call is made again
	Decision   string // the number of a delivery
	Yes, Wrong bool   // what it says, and that it names other params
	Again      bool   // it was sent before, and nobody was told what became of it
	Halt       string
	Dedupes    bool  // the tool may be called again with its key
	Same       bool  // both runs call it with the same params
	Steady     bool  // the ledger's clock is steady, whatever the client's says
	Lease      int64 // nanoseconds

	call, answered int64
}

// Answer is what it got.
type Answer struct {
	Kind       string
	Generation int
	Token      int
	Halt       string
}

// Entry is an effect, or what undoes it.
type Entry struct {
	State    string
	Token    int
	Run      int
	Holder   string
	Client   string
	Unproven bool  // an earlier call may have happened
	Lease    int64 // not over before then
}

type Generation struct {
	Made, Undo Entry
	Replayed   [2]bool // who goes on with what the other run has made
}

type Approval struct {
	State    string
	Decision string // that was accepted
	UsedBy   int    // generation
}

// Key is all that the ledger knows of one key.
type Key struct {
	Made           [generations]Generation
	Count          int
	Approvals      [2][numbers]Approval
	Barred, Untold [2]bool // whose step was undone; who has to be told that it was undone
}

// Outcome is an answer that the ledger may give, and what it knows then.
type Outcome struct {
	Answer
	after any
}

func (k *Key) entry(of Input) *Entry {
	made := &k.Made[of.Generation-1]
	if of.Undo {
		return &made.Undo
	}
	return &made.Made
}

func said(kind string, after any) Outcome { return Outcome{Answer{Kind: kind}, after} }

// told is an answer that names an entry.
func (in Input) told(kind string, after Key) Outcome {
	token := after.entry(in).Token
	return Outcome{Answer{Kind: kind, Generation: in.Generation, Token: token}, after}
}

// allow returns why a call may not begin, or what the ledger knows once it may.
func (in Input) allow(k Key) (refusal string, after Key) {
	if in.Undo {
		made := &k.Made[in.Generation-1].Made
		if made.State != "committed" && made.State != "compensating" {
			return "barred", k
		}
		made.State = "compensating"
		return "", k
	}
	by := &k.Approvals[in.Of][in.Number]
	switch {
	case k.Barred[in.Run]:
		return "barred", k
	case k.Untold[in.Run]:
		return "asked", k
	case by.State != "" && in.Of != in.Run:
		return "mismatch", k
	case by.State != "approved" || by.UsedBy != 0 && by.UsedBy != in.Generation:
		return "approvalrefused", k
	}
	by.UsedBy = in.Generation
	return "", k
}

// begin begins the call of an entry, if it may; refused is what the ledger knows if it may not.
func (in Input) begin(k, refused Key, entry Entry) (all []Outcome) {
	if !in.Undo { // whether it was halted, another model says
		all = append(all, said("halted", refused))
	}
	refusal, after := in.allow(k)
	if refusal != "" {
		return append(all, said(refusal, refused))
	}
	after.Count = max(after.Count, in.Generation)
	entry.Lease = in.call + in.Lease
	*after.entry(in) = entry
	return append(all, in.told("claimed", after))
}

func (in Input) claimed(k Key, token int, unproven bool) []Outcome {
	entry := Entry{State: "claimed", Token: token, Run: in.Run, Unproven: unproven}
	entry.Holder, entry.Client = in.Holder, in.Client
	return in.begin(k, k, entry)
}

// resumed goes on with a client's own claim, or gives it up.
func (in Input) resumed(k Key) []Outcome {
	given, entry := k, *k.entry(in)
	given.entry(in).State = notApplied(&entry)
	return in.begin(k, given, entry)
}

func notApplied(e *Entry) string {
	if e.Unproven {
		return "in_doubt"
	}
	return "failed"
}

func (in Input) doubted(k Key) Outcome {
	e := k.entry(in)
	e.State, e.Holder, e.Token = "in_doubt", "", e.Token+1
	return in.told("doubtful", k)
}

func (in Input) mayBeOver(e *Entry) bool { return !in.Steady || in.answered >= e.Lease-slack }

func (in Input) claim(k Key) []Outcome {
	if !in.Undo {
		in.Generation = k.Count
	} else if k.entry(in).State == "" {
		return in.claimed(k, 1, false)
	}
	anew := in
	anew.Generation++
	if in.Generation == 0 {
		return anew.claimed(k, 1, false)
	}
	e := k.entry(in)
	same := in.Same || in.Run == e.Run
	switch {
	case e.State == "failed" && same:
		return in.claimed(k, e.Token+1, false)
	case e.State == "compensated" && in.Run == e.Run:
		return []Outcome{said("barred", k)}
	case e.State == "failed" || e.State == "compensated":
		return anew.claimed(k, 1, false)
	case !same:
		return []Outcome{said("mismatch", k)}
	case e.State == "committed":
		k.Made[in.Generation-1].Replayed[in.Run] = in.Run != e.Run
		return []Outcome{in.told("committed", k)}
	case e.State == "compensating" && k.Barred[in.Run]:
		return []Outcome{said("barred", k)}
	case e.State == "compensating":
		return []Outcome{said("held", k)}
	case e.State == "in_doubt" && in.Dedupes && !in.Undo:
		return append(in.claimed(k, e.Token+1, true), in.doubted(k))
	case e.State == "in_doubt":
		return []Outcome{in.doubted(k)}
	case e.Holder == in.Holder && in.Steady:
		return in.resumed(k)
	case e.Holder == in.Holder: // by a clock that was set it may have been held up for too long
		return append(in.resumed(k), in.doubted(k))
	}
	all := []Outcome{said("held", k)}
	repeats := in.Dedupes && !in.Undo
	if repeats && (e.Client == in.Client || in.mayBeOver(e)) {
		all = append(all, in.claimed(k, e.Token+1, true)...)
	}
	if in.mayBeOver(e) && !(repeats && in.Steady) {
		all = append(all, in.doubted(k))
	}
	return all
}

// settle is what a client says of an entry that it was told of; fenced out, it changes nothing.
func (in Input) settle(k Key) []Outcome {
	e := k.entry(in)
	ours := e.Token == in.Token && e.State == in.State
	if in.Op == "commit" && e.Token == in.Token && e.State == "committed" {
		return []Outcome{said("recorded", k)}
	}
	if in.Op == "notfound" {
		all := []Outcome{said("held", k)} // a call may be on its way still, or it is another's
		if ours && in.Forward {
			all = append(all, in.claimed(k, e.Token+1, false)...)
		} else if ours {
			e.State = "failed"
			all = append(all, said("barred", k))
		}
		return all
	}
	if !ours {
		return []Outcome{said("fenced", k)}
	}
	switch in.Op {
	case "commit":
		e.State = "committed"
		if in.Undo {
			made := &k.Made[in.Generation-1]
			made.Made.State = "compensated"
			for run, relies := range made.Replayed {
				k.Untold[run] = k.Untold[run] || relies
			}
		}
	case "fail":
		e.State = notApplied(e)
	case "doubt":
		e.State = "in_doubt"
	case "renew":
		e.Lease = in.call + in.Lease
	}
	return []Outcome{said("recorded", k)}
}

func (in Input) decide(k Key) (all []Outcome) {
	// What comes again is answered as it was, perhaps before there was a request.
	for _, before := range []string{"wrong_hash", "unknown_approval", "already_decided"} {
		if in.Again {
			all = append(all, said(before, k))
		}
	}
	a := &k.Approvals[in.Run][in.Number]
	verdict := "not_waiting"
	switch {
	case a.Decision == in.Decision && a.Decision != "":
		return []Outcome{said("accepted", k)}
	case a.State == "pending" && in.Wrong:
		verdict = "wrong_hash"
	case a.State == "pending":
		verdict, a.State, a.Decision = "accepted", "rejected", in.Decision
		if in.Yes {
			a.State = "approved"
		}
	case a.State == "":
		verdict = "unknown_approval"
	case a.State != "void":
		verdict = "already_decided"
	}
	return append(all, said(verdict, k))
}

func (in Input) undo(k Key) []Outcome {
	k.Barred[in.Run] = true
	in.Generation = k.Count
	if k.Count == 0 || k.entry(in).Run != in.Run {
		return []Outcome{said("nothingtoundo", k)}
	}
	switch e := k.entry(in); e.State {
	case "failed", "compensated":
		return []Outcome{said("nothingtoundo", k)}
	case "in_doubt":
		return []Outcome{in.doubted(k)}
	case "committed", "compensating":
		return []Outcome{in.told("toundo", k), in.told("askfirst", k)}
	default:
		all := []Outcome{said("held", k)}
		if in.mayBeOver(e) {
			all = append(all, in.doubted(k))
		}
		return all
	}
}

// ofKey returns what the ledger may answer where it knows this of a key.
func ofKey(state any, in Input) []Outcome {
	k := state.(Key)
	switch in.Op {
	case "ask":
		if a := &k.Approvals[in.Run][in.Number]; a.State == "" {
			a.State = "pending"
		}
		return []Outcome{said("asked", k)}
	case "void":
		a := &k.Approvals[in.Run][in.Number]
		if a.State == "pending" || a.State == "approved" && a.UsedBy == 0 {
			a.State = "void"
		}
		return []Outcome{said(cmp.Or(a.State, "void"), k)}
	case "look":
		if in.Generation = k.Count; k.Count == 0 {
			return []Outcome{said("", k)}
		}
		return []Outcome{in.told(k.entry(in).State, k)}
	case "decide":
		return in.decide(k)
	case "claim":
		return in.claim(k)
	case "undo":
		return in.undo(k)
	}
	return in.settle(k)
}

// ofHalts does the same for a tenant's halts; its state are those that stand.
func ofHalts(state any, in Input) []Outcome {
	standing := strings.Fields(state.(string))
	at := slices.Index(standing, in.Halt)
	switch {
	case in.Op == "halt":
		standing = append(standing, in.Halt)
		slices.Sort(standing)
		return []Outcome{said("recorded", strings.Join(standing, " "))}
	case in.Op == "lift" && at < 0:
		return []Outcome{said("lifted", state)}
	case in.Op == "lift":
		return []Outcome{said("recorded", strings.Join(slices.Delete(standing, at, at+1), " "))}
	case len(standing) == 0:
		return []Outcome{said("claimed", state)}
	}
	all := make([]Outcome, len(standing))
	for i, one := range standing {
		all[i] = Outcome{Answer{Kind: "halted", Halt: one}, state}
	}
	return all
}

func model(first any, outcomes func(any, Input) []Outcome) porcupine.Model {
	seed := maphash.MakeSeed()
	unsure := porcupine.NondeterministicModel{
		Init: func() []any { return []any{first} },
		Step: func(state, input, output any) (all []any) {
			if output == nil { // nobody was told whether it happened
				all = append(all, state)
			}
			for _, one := range outcomes(state, input.(Input)) {
				if output == nil || one.Answer == output {
					all = append(all, one.after)
				}
			}
			return all
		},
		Hash: func(state any) uint64 { return maphash.Comparable(seed, state) },
	}
	return unsure.ToModel()
}

// Line is a call, and the answer to it if there was one.
type Line struct {
	Call, Return int64
	In           Input
	Out          *Answer
}

// Report is what is printed.
type Report struct {
	Operations, Open, Parts int
	Answers                 map[string]int
	Unknown                 []string            // parts that took too long
	Illegal                 map[string][]string // parts that no ledger could have
}

// parts takes a history apart: keys have nothing to do with one another, but for halts.
func parts(lines []Line, report *Report) map[string][]porcupine.Operation {
	all := map[string][]porcupine.Operation{}
	for _, one := range lines {
		in, halts := one.In, one.In.Tenant+" halts"
		in.call, in.answered = one.Call, one.Return
		add := func(part string, out any) {
			all[part] = append(all[part], porcupine.Operation{
				Input: in, Call: one.Call, Output: out, Return: in.answered,
			})
		}
		part := in.Tenant + " " + in.Key
		if in.Op == "halt" || in.Op == "lift" {
			part = halts
		}
		report.Operations++
		if one.Out == nil {
			report.Open++
			in.answered = math.MaxInt64
			add(part, nil)
			continue
		}
		answer := *one.Out
		report.Answers[in.Op+": "+answer.Kind]++
		begins := !in.Undo && (in.Op == "claim" || in.Op == "notfound")
		if begins && (answer.Kind == "claimed" || answer.Kind == "halted") {
			add(halts, Answer{Kind: answer.Kind, Halt: answer.Halt})
		}
		answer.Halt = ""
		add(part, answer)
	}
	return all
}

func main() {
	report := Report{Answers: map[string]int{}, Illegal: map[string][]string{}}
	var lines []Line
	if err := json.NewDecoder(os.Stdin).Decode(&lines); err != nil {
		panic(err)
	}
	var wait sync.WaitGroup
	var lock sync.Mutex
	turns := make(chan struct{}, runtime.NumCPU())
	keys, halts := model(Key{}, ofKey), model("", ofHalts)
	for name, history := range parts(lines, &report) {
		of := keys
		if strings.HasSuffix(name, " halts") {
			of = halts
		}
		report.Parts++
		wait.Go(func() {
			turns <- struct{}{}
			found := porcupine.CheckOperationsTimeout(of, history, patience)
			<-turns
			lock.Lock()
			defer lock.Unlock()
			if found == porcupine.Unknown {
				report.Unknown = append(report.Unknown, name)
			}
			for _, one := range history {
				if found == porcupine.Illegal {
					line := fmt.Sprintf("%d to %d: %+v got %+v", one.Call, one.Return, one.Input, one.Output)
					report.Illegal[name] = append(report.Illegal[name], line)
				}
			}
		})
	}
	wait.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		panic(err)
	}
}
