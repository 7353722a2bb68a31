"""The server process: who connects, what each trainer gets, when, and how it went.

daemon      start, serve, drain, shut down               reload, reload_plan    the configuration read again
router      the ROUTER socket                            dispatcher             messages to events, actions to messages
sessions    how sessions come and go                     batch_sender           batches on their way out
status_builder  what it knows of itself, and answers     epoch_summary          how an epoch went, once for all
systemd     the daemon as the service manager sees it    socket_activation      the sockets that it hands over
embedded    the daemon behind `streamd.local`            data_places            whether the data are there yet
start_libraries    those that it does not start without

engine/     batches made on this host      streams/    what is served      monitor/    what is asked over HTTP
"""
