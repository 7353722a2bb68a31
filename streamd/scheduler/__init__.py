"""Decides, from every trainer's cursor and credit, what is produced next, what is sent and which slots are free.

Pure: events in, actions out; time is an argument. All events enter by `Scheduler.handle_events`.

    scheduler   the decision             events, actions   its input, its output
    session     a trainer's position     slot_pool         the slots, and the batches in them
    admission   which session may begin  fair_share        which batch is decoded next
    in_flight   batches in production    leases            how leases begin and end, and what becomes of the slots
    invariants  a second set of books    ended_sessions    batches that trainers still hold of ended sessions
    session_table  the sessions, by number and by stream
"""
