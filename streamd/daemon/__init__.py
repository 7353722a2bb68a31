"""The server process: its life, its sockets, its sessions, and what it reports.

daemon      start, serve, drain, shut down               reload, reload_plan    applies a changed configuration
dispatcher  messages to events, actions to messages      batch_sender           queues, sends and copies batches
            and answers without a session
sessions    admits, refuses and ends sessions            gate_keeper            starts and ends the gates and the door
status_builder  the status                               epoch_summary          one summary of each epoch
systemd     the service manager: its sockets, and notifications to it
embedded    the daemon behind `streamd.local`            data_watch             whether the data are there
served_endpoint    the endpoint on disk, and its lock   descriptor_allowance   how many sessions, and for whom
start_libraries    libraries without which it does not start

engine/     batches made on this host      streams/    what is served      monitor/    metrics and dashboard over HTTP
"""
