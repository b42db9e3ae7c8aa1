-------------------------------- MODULE Trace --------------------------------
(***************************************************************************)
(* Is what the code did a behaviour of ShardCoordination?                  *)
(*                                                                         *)
(* `tessera-sim coordination --export-trace FILE` writes a module that     *)
(* extends this one with bounds, clocks and steps. Each step names one     *)
(* action with its arguments, what came of it, and what the records looked *)
(* like afterwards. A step that the model cannot take, or not with that    *)
(* outcome, ends the behaviour early, and TLC reports a deadlock.          *)
(***************************************************************************)
EXTENDS ShardCoordination

CONSTANTS
    Clocks,     \* worker -> how far its clock is ahead
    Steps       \* what happened

VARIABLES
    at,         \* how many steps were taken
    waited      \* ticks of the present step, if it is about time

tvars == <<vars, at, waited>>

TraceInit == Init /\ skew = Clocks /\ at = 0 /\ waited = 0

\* What the code shows of a record.
Shown(r) == <<r.status, r.fence, r.owner, r.left, r.lo, r.hi, r.cursor>>
AsSeen(seen) == \A s \in Shards : IF s <= Len(seen) THEN Shown(shard'[s]) = seen[s] ELSE shard'[s].status = "Free"

Fate(op) == IF Replayed(op) THEN "replayed" ELSE IF Refused(op) THEN "refused" ELSE "executed"

\* A worker that was told there is nothing to claim. A former holder need not wait out the tolerance, and may.
NothingFor(w) ==
    \/ run # "Active"
    \/ \A s \in Shards : shard[s].status = "Active" =>
            shard[s].owner # None /\ shard[s].left - skew[w] + SkewTolerance > 0

Does(step) ==
    CASE step.do = "time" -> IF ENABLED Tick THEN Tick ELSE UNCHANGED vars
      [] step.do = "acquire" -> Acquire(step.worker, step.shard, step.heard)
      [] step.do = "none" -> NothingFor(step.worker) /\ UNCHANGED vars
      [] step.do = "forget" -> Forget(step.worker)
      [] step.do = "renew" ->
            LET w == step.worker
                b == belief[w] IN
            /\ b # NoBelief
            /\ IF step.fate = "executed"
               THEN \/ Renew(w)
                    \/ /\ run = "Active" /\ ~LeaseRefusal(w, b.shard, b.fence)
                       /\ shard[b.shard].left = LeaseTicks + skew[w]
                       /\ UNCHANGED vars
               ELSE (run # "Active" \/ LeaseRefusal(w, b.shard, b.fence)) /\ UNCHANGED vars
      [] step.do = "write" ->
            /\ belief[step.worker] # NoBelief
            /\ step.accepted = (belief[step.worker].fence >= sink[belief[step.worker].shard].fence)
            /\ WriteResult(step.worker)
      [] step.do = "send" ->
            /\ belief[step.worker] # NoBelief
            /\ NextOp = step.op
            /\ Send(step.worker, step.kind, IF step.argument = -1 THEN belief[step.worker].lo ELSE step.argument)
      [] step.do = "unpark" -> NextOp = step.op /\ SendUnpark(step.shard)
      [] step.do = "deliver" ->
            /\ request[step.op] # NoRequest
            /\ Fate(step.op) = step.fate
            /\ Deliver(step.op, step.heard)
      [] step.do = "complete run" -> IF step.fate = "executed" THEN CompleteRun ELSE UNCHANGED vars
      [] step.do = "cancel run" -> IF step.fate = "executed" THEN CancelRun ELSE UNCHANGED vars

TraceNext ==
    \/ /\ at < Len(Steps)
       /\ LET step == Steps[at + 1] IN
            /\ Does(step)
            /\ ("seen" \in DOMAIN step) => AsSeen(step.seen)
            /\ IF step.do = "time" /\ waited + 1 < step.ticks
               THEN waited' = waited + 1 /\ at' = at
               ELSE waited' = 0 /\ at' = at + 1
    \/ at = Len(Steps) /\ UNCHANGED tvars

TraceSpec == TraceInit /\ [][TraceNext]_tvars
=============================================================================
