"""Sessions: the recurrent state of one episode at a policy, in this process or at a server."""
