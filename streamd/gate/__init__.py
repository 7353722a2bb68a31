"""The processes at the daemon's border, between it and the clients of other users.

    door        listens at the public path, and refers each client to the socket of its user
    user_gate   speaks ZeroMQ with the clients of one user, and passes frames and lifelines to the daemon
    network_gate   the same for the clients of other hosts at one address, to which it sends pixels
    network_router their socket, and which keys are let in

A client can make libzmq end its process. So each user has a gate of its own, and the door is without libzmq.
"""
