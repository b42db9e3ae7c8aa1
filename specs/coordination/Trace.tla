-------------------------------- MODULE Trace --------------------------------
(***************************************************************************)
(* Is what the code did a behaviour of ShardCoordination?                  *)
(*                                                                         *)
(* `tessera-sim coordination --export-trace FILE` writes a module that     *)
(* extends this one with bounds, clocks and steps. Each step names one     *)
(* action with its arguments, what was answered, and how run and records   *)
(* looked afterwards, op-logs included. A step that the model cannot take, *)
(* or not with that outcome, ends the behaviour early, and TLC reports a   *)
(* deadlock.                                                               *)
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
Shown(r) == <<r.status, r.fence, r.owner, r.left, r.lo, r.hi, r.cursor, r.log, r.parent>>
AsSeen(seen) == \A s \in Shards : IF s <= Len(seen) THEN Shown(shard'[s]) = seen[s] ELSE shard'[s].status = "Free"

\* The answer. A park is undone when the fence has moved since: a retry is told so.
Fate(op) ==
    LET q == request[op] IN
    IF Replayed(op) THEN IF q.kind = "park" /\ shard[q.shard].fence > q.fence THEN "superseded" ELSE "replayed"
    ELSE IF ~Refused(op) THEN "executed"
    ELSE IF run # "Active" THEN "refused by the run"
    ELSE IF q.kind # "unpark" /\ LeaseRefusal(q.worker, q.shard, q.fence) THEN "refused by the lease"
    ELSE "refused"

\* The shards that an accepted operation made, now or when it was first accepted.
Made(op) == {s \in Shards : shard'[s].parent = request[op].shard /\ shard'[s].born = op}
Elements(sequence) == {sequence[i] : i \in 1 .. Len(sequence)}

\* A worker that was told there is nothing to claim. A former holder need not wait out the tolerance, and may.
NothingFor(w) ==
    \A s \in Shards : shard[s].status = "Active" =>
        shard[s].owner # None /\ shard[s].left - skew[w] + SkewTolerance > 0

Does(step) ==
    CASE step.do = "time" -> IF ENABLED Tick THEN Tick ELSE UNCHANGED vars
      [] step.do = "acquire" ->
            /\ Acquire(step.worker, step.shard, step.heard)
            /\ LET r == shard'[step.shard] IN step.told = <<r.fence, r.lo, r.hi, r.cursor>>
      [] step.do = "none" -> run = "Active" /\ NothingFor(step.worker) /\ UNCHANGED vars
      [] step.do = "closed" -> run # "Active" /\ UNCHANGED vars
      [] step.do = "forget" -> Forget(step.worker)
      [] step.do = "renew" ->
            LET w == step.worker
                b == belief[w] IN
            /\ b # NoBelief
            /\ LeaseRefusal(w, b.shard, b.fence) <=> step.fate = "refused by the lease"
            /\ IF step.fate = "executed"
               THEN \/ Renew(w)
                    \/ /\ run = "Active"
                       /\ shard[b.shard].left = LeaseTicks + skew[w]
                       /\ UNCHANGED vars
               ELSE /\ step.fate = "told to stop" => run # "Active"
                    /\ UNCHANGED vars
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
            /\ step.fate \in {"executed", "replayed", "superseded"} => Elements(step.made) = Made(step.op)
      [] step.do = "complete run" ->
            CASE step.fate = "executed" -> CompleteRun
              [] step.fate = "replayed" -> run = "Done" /\ UNCHANGED vars
              [] OTHER -> (run # "Active" \/ \E s \in Shards : ~Settled(s)) /\ UNCHANGED vars
      [] step.do = "cancel run" ->
            CASE step.fate = "executed" -> CancelRun
              [] step.fate = "replayed" -> run = "Cancelled" /\ UNCHANGED vars
              [] OTHER -> run # "Active" /\ UNCHANGED vars

TraceNext ==
    \/ /\ at < Len(Steps)
       /\ LET step == Steps[at + 1] IN
            /\ Does(step)
            /\ ("seen" \in DOMAIN step) => AsSeen(step.seen) /\ run' = step.run
            /\ IF step.do = "time" /\ waited + 1 < step.ticks
               THEN waited' = waited + 1 /\ at' = at
               ELSE waited' = 0 /\ at' = at + 1
    \/ at = Len(Steps) /\ UNCHANGED tvars

TraceSpec == TraceInit /\ [][TraceNext]_tvars
=============================================================================
