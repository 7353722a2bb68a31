"""The server process: its life, its sockets, its sessions, and what it reports.

daemon      start, serve, drain, shut down               reload, reload_plan    applies a changed configuration
router      the ROUTER socket                            dispatcher             messages to events, actions to messages
sessions    admits, refuses and ends sessions            batch_sender           queues batches and sends them
status_builder  the status, and answers to queries       epoch_summary          one summary of each epoch
systemd     notifications to the service manager         socket_activation      sockets that the manager hands over
embedded    the daemon behind `streamd.local`            data_places            whether the data are there yet
start_libraries    libraries without which it does not start

engine/     batches made on this host      streams/    what is served      monitor/    metrics and dashboard over HTTP
"""
