------------------------------ MODULE Liveness ------------------------------
(***************************************************************************)
(* Once faults stop, a run settles, with time that keeps running.          *)
(*                                                                         *)
(* Until `calm`, anything of ShardCoordination may happen. From then on no *)
(* reply is lost, no worker forgets, and every worker gets a turn in each  *)
(* tick: without some bound on slowness no lease protocol can promise      *)
(* progress, and this is the weakest one that is easy to state. Calm       *)
(* operations carry no op id, so that the budget of op ids bounds the      *)
(* faulty past and not the future. A shard may be taken over in calm as    *)
(* often as its past leaves it leased to a worker that has forgotten it.   *)
(***************************************************************************)
EXTENDS ShardCoordination

VARIABLES calm, turn    \* turn: the workers that have not had their turn in this tick
lvars == <<vars, calm, turn>>

InitL == Init /\ calm = FALSE /\ turn = {}

Storm == ~calm /\ Next /\ UNCHANGED <<calm, turn>>

Calm == /\ ~calm
        /\ calm' = TRUE
        /\ turn' = Workers
        \* A request of the past may have been lost for good: its worker gives up and claims anew.
        /\ belief' = [w \in Workers |-> IF belief[w] # NoBelief /\ belief[w].op # 0 THEN NoBelief ELSE belief[w]]
        /\ UNCHANGED <<shard, run, incarnation, live, skew, request, sink, recorded, executed, control, faults>>

Ghosts == <<incarnation, live, skew, request, executed, control, faults>>

Claim(w, s) ==
    /\ shard[s].status = "Active"
    /\ ClaimableFor(w, shard[s])
    /\ shard' = [shard EXCEPT ![s].fence = @ + 1, ![s].owner = w, ![s].left = LeaseTicks + skew[w]]
    /\ belief' = [belief EXCEPT ![w] = [shard |-> s, incarnation |-> incarnation,
                                        fence |-> shard[s].fence + 1, lo |-> shard[s].lo, hi |-> shard[s].hi,
                                        next |-> shard[s].cursor, op |-> 0]]
    /\ UNCHANGED <<sink, recorded>>

Step(w) ==
    LET b == belief[w] IN
    IF b = NoBelief
    THEN IF \E s \in Shards : shard[s].status = "Active" /\ ClaimableFor(w, shard[s])
         THEN \E s \in Shards : Claim(w, s)
         ELSE UNCHANGED <<shard, belief, sink, recorded>>
    ELSE IF LeaseRefusal(w, b.shard, b.fence)
    THEN /\ belief' = [belief EXCEPT ![w] = NoBelief]
         /\ UNCHANGED <<shard, sink, recorded>>
    ELSE IF b.next < shard[b.shard].hi
    THEN \* One key and a renewal: a worker renews in time by itself.
         /\ sink' = [sink EXCEPT ![b.shard] = [fence |-> b.fence, worker |-> w]]
         /\ recorded' = recorded \cup {b.next}
         /\ belief' = [belief EXCEPT ![w].next = @ + 1]
         /\ shard' = [shard EXCEPT ![b.shard].left = LeaseTicks + skew[w]]
    ELSE /\ shard' = [shard EXCEPT ![b.shard].status = "Done", ![b.shard].owner = None, ![b.shard].left = 0,
                                   ![b.shard].cursor = b.next]
         /\ belief' = [belief EXCEPT ![w] = NoBelief]
         /\ UNCHANGED <<sink, recorded>>

Turn(w) ==
    /\ calm /\ run = "Active" /\ w \in turn
    /\ Step(w)
    /\ turn' = turn \ {w}
    /\ UNCHANGED <<run, calm>> /\ UNCHANGED Ghosts

CalmTick ==
    /\ calm /\ run = "Active" /\ turn = {}
    /\ turn' = Workers
    /\ shard' = [s \in Shards |->
            IF shard[s].owner = None THEN shard[s]
            ELSE [shard[s] EXCEPT !.left = Max(@ - 1, 0 - SkewTolerance)]]
    /\ UNCHANGED <<run, belief, sink, recorded, calm>> /\ UNCHANGED Ghosts

CalmComplete == calm /\ CompleteRun /\ UNCHANGED <<calm, turn>>

NextL == Storm \/ Calm \/ (\E w \in Workers : Turn(w)) \/ CalmTick \/ CalmComplete

SpecL == InitL /\ [][NextL]_lvars
    /\ WF_lvars(CalmTick) /\ WF_lvars(CalmComplete) /\ \A w \in Workers : WF_lvars(Turn(w))

\* A parked shard waits for an operator; otherwise a calm run settles.
RunSettles == calm ~> (run # "Active" \/ \E s \in Shards : shard[s].status = "Parked")
=============================================================================
