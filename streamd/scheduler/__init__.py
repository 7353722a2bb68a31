"""Given every trainer's cursor and credit: what is produced next, what is sent to whom, what is free again.

Pure: events in, actions out, time an argument. `Scheduler.handle_event` is the only way in.

    scheduler   the decision             events, actions   what comes in, what goes out
    session     a trainer's place        slot_pool         the slots, and what lies in them
    admission   who may begin            fair_share        whose batch is next
    in_flight   what is in production    leases            how they begin and end, and what becomes of slots
    invariants  a second set of books    ended_sessions    what trainers still hold of sessions that have ended
"""
