"""Decides, from every trainer's cursor and credit, what is produced next, what is sent and which slots are free.

Pure: events in, actions out; time is an argument. All events enter by `Scheduler.handle_events`.

    scheduler      the decision; sessions, leases, batches in production    events         its input and its output
    session        a trainer's position, also of ended sessions             slot_pool      the slots, and their batches
    admission      which session may begin                                  memory_shares  what a user may take
    fair_share     which batch is decoded next                              invariants     a second set of books
"""
