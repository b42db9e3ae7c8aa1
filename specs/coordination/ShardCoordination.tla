-------------------------- MODULE ShardCoordination --------------------------
(***************************************************************************)
(* One run over the keys 0 .. KeyCount-1: shards, leases with fence        *)
(* epochs, a bounded op-log, both kinds of split, release, park, unpark,   *)
(* and cancel; workers whose clocks disagree, whose requests arrive late   *)
(* or several times, whose replies get lost, and that go on writing        *)
(* results after they lost their lease. A settled run may be retired and   *)
(* created again under the same id: a new incarnation, in which fences     *)
(* start anew while leases and requests of the old one are still around.   *)
(*                                                                         *)
(* Safety is stated over *effects*: what reached the result store, and in  *)
(* whose name. A record has one owner field, so "no two owners" could not  *)
(* fail; "no result of an older fence after a newer one" can.              *)
(*                                                                         *)
(* Time is relative. A lease stores how many ticks it has left, so the     *)
(* clock can run for ever in a finite state space.                         *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Workers,        \* a set of model values
    KeyCount,       \* the run sweeps 0 .. KeyCount-1
    ShardMax,       \* how many shard ids exist; 1 is the root
    OpMax,          \* how many operations with an op id are ever sent
    OpLogCap,       \* entries in a shard's op-log; production has 16
    FenceMax,       \* no acquisition beyond this fence epoch
    LeaseTicks,     \* length of a lease
    SkewMax,        \* a worker's clock is 0 .. SkewMax ticks ahead
    SkewTolerance,  \* what a claimant grants a foreign deadline
    Kinds,          \* which operations the workers may send
    Cancelling,     \* whether an operator may cancel the run
    IncarnationMax, \* how many runs have the same id, one after the other
    Mutants         \* rules broken on purpose, to see that a property notices

VARIABLES
    shard,      \* shard id -> record
    run,        \* "Active" | "Done" | "Cancelled"
    incarnation,\* which run this is, of those that had its id
    live,       \* the workers that have a session in the run; kept where shards are reported as unreachable
    skew,       \* worker -> how far its clock is ahead
    request,    \* op id -> the request that carries it, or NoRequest
    belief,     \* worker -> the lease it thinks it holds, or NoBelief
    sink,       \* shard id -> the newest writer the result store has seen
    recorded,   \* the keys whose results are durable
    executed,   \* op id -> how often it changed the record (ghost)
    control,    \* shard id -> the newest writer of the record (ghost)
    faults      \* rules seen broken in a step (ghost); stays empty

vars == <<shard, run, incarnation, live, skew, request, belief, sink, recorded, executed, control, faults>>

None       == "none"
Shards     == 1 .. ShardMax
Ops        == 1 .. OpMax
Terminal   == {"Done", "Split", "Parked"}
NoRequest  == [kind |-> None]
NoBelief   == [shard |-> 0]
NoWriter   == [fence |-> 0, worker |-> None]
FreeRecord == [status |-> "Free", fence |-> 0, owner |-> None, left |-> 0,
               lo |-> 0, hi |-> 0, cursor |-> 0, log |-> <<>>, parent |-> 0, born |-> 0,
               reports |-> {}, cut |-> FALSE]
RootRecord == [FreeRecord EXCEPT !.status = "Active", !.fence = 1, !.hi = KeyCount]

Max(a, b) == IF a > b THEN a ELSE b
InLog(s, op) == \E i \in 1 .. Len(shard[s].log) : shard[s].log[i] = op
Logged(log, op) == IF Len(log) < OpLogCap THEN Append(log, op) ELSE Append(Tail(log), op)
NextOp == IF \E o \in Ops : request[o] = NoRequest
          THEN CHOOSE o \in Ops : request[o] = NoRequest /\ \A p \in 1 .. o-1 : request[p] # NoRequest
          ELSE 0
FreeShards == {s \in Shards : shard[s].status = "Free"}
Lowest(set) == CHOOSE s \in set : \A t \in set : s <= t
NewRecords == [s \in Shards |-> IF s = 1 THEN RootRecord ELSE FreeRecord]
NoWriters == [s \in Shards |-> NoWriter]
KnowsSessions == "unreachable" \in Kinds

Init ==
    /\ shard = NewRecords
    /\ run = "Active"
    /\ incarnation = 1
    /\ live = {}
    /\ skew \in [Workers -> 0 .. SkewMax]
    /\ request = [o \in Ops |-> NoRequest]
    /\ belief = [w \in Workers |-> NoBelief]
    /\ sink = NoWriters
    /\ recorded = {}
    /\ executed = [o \in Ops |-> 0]
    /\ control = NoWriters
    /\ faults = {}

-----------------------------------------------------------------------------
(* Time, seen by a worker's own clock.                                      *)

ExpiredFor(w, r) == r.left - skew[w] <= 0
ClaimableFor(w, r) ==
    \/ r.owner = None
    \/ /\ "DeadOwnersKeep" \notin Mutants
       /\ r.left - skew[w] + (IF r.owner = w \/ "NoSkewTolerance" \in Mutants THEN 0 ELSE SkewTolerance) <= 0

\* What remains of a dead lease is of no consequence: one value stands for all.
Tick ==
    /\ shard' = [s \in Shards |->
            IF shard[s].owner = None THEN shard[s]
            ELSE [shard[s] EXCEPT !.left = Max(@ - 1, 0 - SkewTolerance)]]
    /\ shard' # shard
    /\ UNCHANGED <<run, incarnation, live, skew, request, belief, sink, recorded, executed, control, faults>>

-----------------------------------------------------------------------------
(* Effects, and in whose name they happen.                                  *)

StaleWriter(last, w, fence) == fence < last.fence \/ (fence = last.fence /\ w # last.worker)
OfFormerRun(i) == IF i # incarnation THEN {"IncarnationFenced"} ELSE {}
ControlWrite(s, w, fence, i) ==
    /\ control' = [control EXCEPT ![s] = [fence |-> fence, worker |-> w]]
    /\ faults' = faults \cup (IF StaleWriter(control[s], w, fence) THEN {"ControlFenced"} ELSE {})
                        \cup (IF run # "Active" THEN {"SettledRunIsQuiet"} ELSE {})
                        \cup (IF ExpiredFor(w, shard[s]) THEN {"ExpiredIsRefused"} ELSE {})
                        \cup OfFormerRun(i)

-----------------------------------------------------------------------------
(* acquire_and_restore_into: no op id, so a lost reply leaves a lease that  *)
(* no worker knows of.                                                      *)

Acquire(w, s, reply) ==
    LET r == shard[s] IN
    /\ belief[w] = NoBelief
    /\ r.status = "Active"
    /\ r.fence < FenceMax
    /\ ClaimableFor(w, r) \/ "AcquireIgnoresLease" \in Mutants
    /\ run = "Active" \/ "AcquireIgnoresRun" \in Mutants
    /\ w \notin r.reports \/ "ReportForgotten" \in Mutants
    /\ LET fence == IF "AcquireKeepsFence" \in Mutants /\ r.fence > 1 THEN r.fence ELSE r.fence + 1 IN
        /\ shard' = [shard EXCEPT ![s].fence = fence, ![s].owner = w, ![s].left = LeaseTicks + skew[w]]
        /\ belief' = IF reply
                     THEN [belief EXCEPT ![w] = [shard |-> s, incarnation |-> incarnation, fence |-> fence,
                                                 lo |-> r.lo, hi |-> r.hi, next |-> r.cursor, op |-> 0]]
                     ELSE belief
    /\ live' = IF KnowsSessions THEN live \cup {w} ELSE live
    /\ faults' = faults \cup (IF run # "Active" THEN {"SettledRunIsQuiet"} ELSE {})
    /\ UNCHANGED <<run, incarnation, skew, request, sink, recorded, executed, control>>

Forget(w) ==
    /\ belief[w] # NoBelief
    /\ belief' = [belief EXCEPT ![w] = NoBelief]
    /\ UNCHANGED <<shard, run, incarnation, live, skew, request, sink, recorded, executed, control, faults>>

\* What was granted, or asked, in a run that is gone. This is looked at before anything else.
OtherIncarnation(i) == i # incarnation /\ "IncarnationUnchecked" \notin Mutants

LeaseRefusal(w, s, fence) ==
    LET r == shard[s] IN
    \/ r.status \in Terminal
    \/ r.fence # fence /\ "FenceUnchecked" \notin Mutants
    \/ r.owner = None
    \/ ExpiredFor(w, r) /\ "ExpiryUnchecked" \notin Mutants
    \/ r.owner # w /\ "FenceUnchecked" \notin Mutants

Renew(w) ==
    /\ belief[w] # NoBelief
    /\ LET b == belief[w] IN
        /\ run = "Active"
        /\ ~OtherIncarnation(b.incarnation)
        /\ ~LeaseRefusal(w, b.shard, b.fence)
        /\ shard' = [shard EXCEPT ![b.shard].left = LeaseTicks + skew[w]]
        /\ shard' # shard
        /\ faults' = faults \cup OfFormerRun(b.incarnation)
    /\ UNCHANGED <<run, incarnation, live, skew, request, belief, sink, recorded, executed, control>>

-----------------------------------------------------------------------------
(* A worker writes the result of its next key. It does not look at a clock: *)
(* the result store alone keeps a zombie out. Each run has a store of its   *)
(* own, and that of a retired run is gone.                                  *)

Accepts(b) ==
    /\ b.incarnation = incarnation \/ "SinkMixesRuns" \in Mutants
    /\ b.fence >= sink[b.shard].fence \/ "SinkUnfenced" \in Mutants

WriteResult(w) ==
    LET b == belief[w]
        last == sink[b.shard] IN
    /\ b # NoBelief
    /\ b.op = 0
    /\ b.next < b.hi
    /\ IF Accepts(b)
       THEN /\ sink' = [sink EXCEPT ![b.shard] = [fence |-> b.fence, worker |-> w]]
            /\ recorded' = recorded \cup {b.next}
            /\ belief' = [belief EXCEPT ![w].next = @ + 1]
            /\ faults' = faults \cup (IF StaleWriter(last, w, b.fence) THEN {"EffectsFenced"} ELSE {})
                                \cup (IF b.fence = shard[b.shard].fence /\ b.next >= shard[b.shard].hi
                                      THEN {"EffectsInRange"} ELSE {})
                                \cup OfFormerRun(b.incarnation)
       ELSE /\ belief' = [belief EXCEPT ![w] = NoBelief]
            /\ UNCHANGED <<sink, recorded, faults>>
    /\ UNCHANGED <<shard, run, incarnation, live, skew, request, executed, control>>

-----------------------------------------------------------------------------
(* Requests with an op id. Once sent, one can be delivered at any time, any *)
(* number of times.                                                         *)

Arguments(b, kind) ==
    CASE kind = "checkpoint"     -> IF b.next > b.lo THEN {b.next} ELSE {}
      [] kind = "complete"       -> IF b.next = b.hi THEN {b.next} ELSE {}
      [] kind = "release"        -> {b.next}
      [] kind = "unreachable"    -> {b.next}
      [] kind = "park"           -> {0}
      [] kind = "split_replace"  -> b.lo + 1 .. b.hi - 1
      [] kind = "split_residual" -> Max(b.next, b.lo + 1) .. b.hi - 1

Send(w, kind, argument) ==
    LET b == belief[w] IN
    /\ b # NoBelief
    /\ b.op = 0
    /\ NextOp # 0
    /\ argument \in Arguments(b, kind)
    /\ request' = [request EXCEPT ![NextOp] =
            [kind |-> kind, worker |-> w, shard |-> b.shard, incarnation |-> b.incarnation, fence |-> b.fence,
             argument |-> argument]]
    /\ belief' = [belief EXCEPT ![w].op = NextOp]
    /\ UNCHANGED <<shard, run, incarnation, live, skew, sink, recorded, executed, control, faults>>

\* What the worker makes of an answer: it goes on, with a narrower range after a residual split, or it is done here.
Absorb(op, accepted, reply) ==
    LET q == request[op]
        w == q.worker IN
    IF ~reply \/ q.kind = "unpark" THEN UNCHANGED belief
    ELSE IF belief[w] = NoBelief THEN UNCHANGED belief
    ELSE IF belief[w].op # op THEN UNCHANGED belief
    ELSE IF ~accepted \/ q.kind \in {"complete", "release", "unreachable", "park", "split_replace"}
         THEN belief' = [belief EXCEPT ![w] = NoBelief]
    ELSE IF q.kind = "split_residual" /\ "SessionKeepsRange" \notin Mutants
         THEN belief' = [belief EXCEPT ![w].op = 0, ![w].hi = q.argument]
    ELSE belief' = [belief EXCEPT ![w].op = 0]

ResidualChild(s, op) == \E c \in Shards : shard[c].status # "Free" /\ shard[c].parent = s /\ shard[c].born = op

Replayed(op) ==
    LET q == request[op] IN
    /\ ~OtherIncarnation(q.incarnation)
    /\ "OpLogUnchecked" \notin Mutants
    /\ \/ InLog(q.shard, op)
       \/ q.kind = "split_residual" /\ ResidualChild(q.shard, op) /\ "NoResidualProbe" \notin Mutants

\* What a retry can rely on: the op-log while it remembers, and the children for ever.
Remembered(op) == InLog(request[op].shard, op) \/ ResidualChild(request[op].shard, op)

CursorRefused(r, cursor) ==
    \/ cursor < r.cursor /\ "CursorMayRegress" \notin Mutants
    \/ cursor > r.hi /\ "CursorUnbounded" \notin Mutants

\* A shard that no worker is left to reach: every worker that has a session reported it. A worker that left took its report along.
Deserted(reports) == live # {} /\ live \subseteq reports
Reported(r, w) ==
    LET reports == (r.reports \cap live) \cup {w} IN
    IF Deserted(reports) \/ "ReportParks" \in Mutants
    THEN [r EXCEPT !.reports = reports, !.status = "Parked", !.cut = TRUE]
    ELSE [r EXCEPT !.reports = reports]

\* The record after the operation; the op-log entry is added by Deliver.
Outcome(op) ==
    LET q == request[op]
        r == shard[q.shard]
        freed == [r EXCEPT !.owner = None, !.left = 0] IN
    CASE q.kind = "checkpoint"     -> [r EXCEPT !.cursor = q.argument]
      [] q.kind = "complete"       -> [freed EXCEPT !.cursor = q.argument, !.status = "Done"]
      [] q.kind = "release"        -> [freed EXCEPT !.cursor = q.argument]
      [] q.kind = "unreachable"    -> Reported([freed EXCEPT !.cursor = q.argument], q.worker)
      [] q.kind = "park"           -> IF "ParkKeepsOwner" \in Mutants THEN [r EXCEPT !.status = "Parked"]
                                      ELSE [freed EXCEPT !.status = "Parked"]
      [] q.kind = "unpark"         -> [freed EXCEPT !.status = "Active", !.reports = {}, !.cut = FALSE,
                                                    !.fence = IF "UnparkResetsFence" \in Mutants THEN 1 ELSE @ + 1]
      [] q.kind = "split_replace"  -> [freed EXCEPT !.status = "Split"]
      [] q.kind = "split_residual" -> [r EXCEPT !.hi = IF "ParentKeepsRange" \in Mutants THEN @ ELSE q.argument]

\* The ranges of the shards an operation gives birth to.
Children(op) ==
    LET q == request[op]
        r == shard[q.shard] IN
    CASE q.kind = "split_replace"  -> IF "SplitDropsUpperPart" \in Mutants THEN <<<<r.lo, q.argument>>>>
                                      ELSE <<<<r.lo, q.argument>>, <<q.argument, r.hi>>>>
      [] q.kind = "split_residual" -> <<<<q.argument, r.hi>>>>
      [] OTHER                     -> <<>>

\* A child whose range holds the parent's last key starts from there.
Inherited(cursor, range) == IF range[1] < cursor /\ cursor <= range[2] THEN cursor ELSE range[1]

Refused(op) ==
    LET q == request[op]
        r == shard[q.shard] IN
    \/ OtherIncarnation(q.incarnation)
    \/ run # "Active" /\ "OpsIgnoreRun" \notin Mutants
    \/ IF q.kind = "unpark"
       THEN \/ r.status # "Parked" /\ ("UnparkRevivesDone" \notin Mutants \/ r.status # "Done")
            \/ r.fence # q.fence /\ "UnparkUnconditional" \notin Mutants
            \/ r.fence >= FenceMax
       ELSE \/ LeaseRefusal(q.worker, q.shard, q.fence)
            \/ q.kind \in {"checkpoint", "complete", "release", "unreachable"} /\ CursorRefused(r, q.argument)
            \/ q.kind = "split_residual" /\ (q.argument < r.cursor \/ q.argument <= r.lo \/ q.argument >= r.hi)
            \/ q.kind = "split_replace" /\ (q.argument <= r.lo \/ q.argument >= r.hi)

HasRoom(op) == Cardinality(FreeShards) >= Len(Children(op))

Deliver(op, reply) ==
    LET q == request[op] IN
    /\ q # NoRequest
    /\ IF Replayed(op)
       THEN /\ Absorb(op, TRUE, reply)
            /\ UNCHANGED <<shard, executed, control, faults>>
       ELSE IF Refused(op)
       THEN /\ Absorb(op, FALSE, reply)
            /\ faults' = faults \cup (IF executed[op] > 0 /\ Remembered(op) THEN {"ReplayAnswersAgree"} ELSE {})
            /\ UNCHANGED <<shard, executed, control>>
       ELSE /\ HasRoom(op)
            /\ LET kids == Children(op)
                   first == IF Len(kids) > 0 THEN Lowest(FreeShards) ELSE 0
                   Id(i) == IF i = 1 THEN first ELSE Lowest(FreeShards \ {first}) IN
               shard' = [s \in Shards |->
                    IF s = q.shard THEN [Outcome(op) EXCEPT !.log = Logged(@, op)]
                    ELSE IF \E i \in 1 .. Len(kids) : Id(i) = s
                    THEN LET i == CHOOSE i \in 1 .. Len(kids) : Id(i) = s IN
                         [FreeRecord EXCEPT !.status = "Active", !.fence = 1, !.lo = kids[i][1], !.hi = kids[i][2],
                                            !.cursor = Inherited(shard[q.shard].cursor, kids[i]),
                                            !.parent = q.shard, !.born = op]
                    ELSE shard[s]]
            /\ executed' = [executed EXCEPT ![op] = IF @ < 2 THEN @ + 1 ELSE @]
            /\ IF q.kind = "unpark"
               THEN /\ control' = control
                    /\ faults' = faults \cup (IF run # "Active" THEN {"SettledRunIsQuiet"} ELSE {})
                                        \cup OfFormerRun(q.incarnation)
               ELSE ControlWrite(q.shard, q.worker, q.fence, q.incarnation)
            /\ Absorb(op, TRUE, reply)
    /\ UNCHANGED <<run, incarnation, live, skew, request, sink, recorded>>

-----------------------------------------------------------------------------
(* Sessions, where reports depend on them.                                  *)

\* A worker asks in vain, and is known from then on.
Join(w) ==
    /\ KnowsSessions
    /\ w \notin live
    /\ belief[w] = NoBelief
    /\ run = "Active"
    /\ live' = live \cup {w}
    /\ UNCHANGED <<shard, run, incarnation, skew, request, belief, sink, recorded, executed, control, faults>>

\* A worker that holds nothing stops, or its session ends.
Leave(w) ==
    /\ w \in live
    /\ belief[w] = NoBelief
    /\ \A s \in Shards : shard[s].owner # w
    /\ live' = live \ {w}
    /\ UNCHANGED <<shard, run, incarnation, skew, request, belief, sink, recorded, executed, control, faults>>

\* A claim passes over a shard that its worker has reported, and finds that no other worker is left.
ClaimParks(w, s) ==
    LET r == shard[s] IN
    /\ belief[w] = NoBelief
    /\ run = "Active"
    /\ r.status = "Active"
    /\ w \in r.reports
    /\ r.owner = None \/ r.left - skew[w] + SkewTolerance <= 0
    /\ Deserted(r.reports)
    /\ shard' = [shard EXCEPT ![s].status = "Parked", ![s].cut = TRUE, ![s].owner = None, ![s].left = 0]
    /\ UNCHANGED <<run, incarnation, live, skew, request, belief, sink, recorded, executed, control, faults>>

-----------------------------------------------------------------------------
(* Operators.                                                               *)

SendUnpark(s) ==
    /\ "unpark" \in Kinds
    /\ shard[s].status \in {"Parked", "Done"}
    /\ NextOp # 0
    /\ request' = [request EXCEPT ![NextOp] =
            [kind |-> "unpark", worker |-> None, shard |-> s, incarnation |-> incarnation, fence |-> shard[s].fence,
             argument |-> 0]]
    /\ UNCHANGED <<shard, run, incarnation, live, skew, belief, sink, recorded, executed, control, faults>>

Settled(s) == shard[s].status \in {"Free", "Done", "Split"}

CompleteRun ==
    /\ run = "Active"
    /\ (\A s \in Shards : Settled(s)) \/ "CompleteRunEarly" \in Mutants
    /\ run' = "Done"
    /\ UNCHANGED <<shard, incarnation, live, skew, request, belief, sink, recorded, executed, control, faults>>

CancelRun ==
    /\ Cancelling
    /\ run = "Active" \/ "CancelSettledRun" \in Mutants
    /\ run' = "Cancelled"
    /\ UNCHANGED <<shard, incarnation, live, skew, request, belief, sink, recorded, executed, control, faults>>

\* The settled run is retired and created again, with new records and a new result store. Workers do not know, and what they
\* sent may still arrive.
Recreate ==
    /\ run # "Active"
    /\ incarnation < IncarnationMax
    /\ incarnation' = incarnation + 1
    /\ run' = "Active"
    /\ shard' = NewRecords
    /\ sink' = NoWriters
    /\ control' = NoWriters
    /\ recorded' = {}
    /\ live' = {}
    /\ UNCHANGED <<skew, request, belief, executed, faults>>

Next ==
    \/ Tick
    \/ \E w \in Workers, s \in Shards, reply \in BOOLEAN : Acquire(w, s, reply)
    \/ \E w \in Workers : Forget(w) \/ Renew(w) \/ WriteResult(w) \/ Join(w) \/ Leave(w)
    \/ \E w \in Workers, s \in Shards : ClaimParks(w, s)
    \/ \E w \in Workers, kind \in Kinds \ {"unpark"}, argument \in 0 .. KeyCount : Send(w, kind, argument)
    \/ \E op \in Ops, reply \in BOOLEAN : Deliver(op, reply)
    \/ \E s \in Shards : SendUnpark(s)
    \/ CompleteRun
    \/ CancelRun
    \/ Recreate

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Ways to keep a world small, for a configuration to choose.               *)

\* `SYMMETRY`: no rule and no property tells one worker from another, so states that differ only in which worker is which
\* count as one. Sound for invariants and for properties of single steps; a configuration with liveness must not use it.
WorkersAreAlike == Permutations(Workers)

\* `CONSTRAINT`: all shards together are leased and unparked three times: one is taken over, or parked and revived, and
\* there is a lease to spare; or three are leased once.
RECURSIVE FencesUpTo(_)
FencesUpTo(s) == IF s = 0 THEN 0 ELSE FencesUpTo(s - 1) + Max(shard[s].fence - 1, 0)
ThreeLeases == FencesUpTo(ShardMax) <= 3

-----------------------------------------------------------------------------
(* Properties. Their names are the names of the simulator's checkers.       *)

RecordInvariants ==
    \A s \in Shards : LET r == shard[s] IN
        /\ r.status \in Terminal => r.owner = None
        /\ r.cut => r.status = "Parked"
        /\ r.status # "Free" => r.fence >= 1
        /\ Len(r.log) <= OpLogCap
        /\ \A i, j \in 1 .. Len(r.log) : i # j => r.log[i] # r.log[j]
        /\ (r.parent # 0) <=> (r.born # 0)
        /\ r.status = "Split" => \E c \in Shards : shard[c].status # "Free" /\ shard[c].parent = s

\* No result under fence f after one under f+1, and one worker under a fence.
EffectsFenced == "EffectsFenced" \notin faults
ControlFenced == "ControlFenced" \notin faults
EffectsInRange == "EffectsInRange" \notin faults
SettledRunIsQuiet == "SettledRunIsQuiet" \notin faults
ExpiredIsRefused == "ExpiredIsRefused" \notin faults
\* A retry that is still remembered gets the first answer, not a refusal.
ReplayAnswersAgree == "ReplayAnswersAgree" \notin faults

\* Nothing that was granted or sent in a former run takes effect in this one.
IncarnationFenced == "IncarnationFenced" \notin faults

CursorInBounds ==
    \A s \in Shards : shard[s].status # "Free" => shard[s].lo <= shard[s].cursor /\ shard[s].cursor <= shard[s].hi

\* The shards that are not split tile the key space: every key has exactly one home.
Homes(k) == {s \in Shards : shard[s].status \notin {"Free", "Split"} /\ shard[s].lo <= k /\ k < shard[s].hi}
SplitTiles == \A k \in 0 .. KeyCount - 1 : Cardinality(Homes(k)) = 1

\* A cursor never passes a key whose result is not durable, and a finished run has them all.
Coverage ==
    /\ \A s \in Shards : shard[s].status \notin {"Free", "Split"} =>
            \A k \in shard[s].lo .. shard[s].cursor - 1 : k \in recorded
    /\ run = "Done" => recorded = 0 .. KeyCount - 1

\* An operation takes effect once, however often it is delivered. A repeated checkpoint converges and is exempt.
AtMostOnce == \A o \in Ops : executed[o] > 1 => request[o].kind = "checkpoint"

\* Records are compared with those of the same run.
SameRun == incarnation' = incarnation
FenceMonotonic == [][SameRun => \A s \in Shards : shard[s].status # "Free" => shard'[s].fence >= shard[s].fence]_vars
OwnerChangeBumpsFence ==
    [][\A s \in Shards : shard'[s].owner # None /\ shard'[s].owner # shard[s].owner
            => shard'[s].fence > shard[s].fence]_vars
CursorMonotonic == [][SameRun => \A s \in Shards : shard'[s].cursor >= shard[s].cursor]_vars
TerminalIrreversible ==
    [][SameRun => \A s \in Shards : shard[s].status \in Terminal /\ shard'[s].status # shard[s].status
            => shard[s].status = "Parked" /\ shard'[s].status = "Active" /\ shard'[s].fence > shard[s].fence]_vars
RunTerminalIrreversible == [][SameRun /\ run # "Active" => run' = run]_vars
\* A lease is not taken from a worker whose own clock still calls it live, if clocks differ by no more than is tolerated.
NoTheftFromLiveOwner ==
    [][\A s \in Shards : shard[s].owner # None /\ shard'[s].owner # None /\ shard'[s].fence > shard[s].fence
            => ExpiredFor(shard[s].owner, shard[s])]_vars
\* A shard is parked as unreachable only when every worker that has a session reported it, and no worker that reported it is
\* granted it again before it was unparked.
UnreachableForAll ==
    [][SameRun => \A s \in Shards :
            /\ shard'[s].cut /\ ~shard[s].cut => Deserted(shard'[s].reports)
            /\ shard'[s].owner # None /\ shard'[s].fence > shard[s].fence => shard'[s].owner \notin shard[s].reports]_vars
=============================================================================
