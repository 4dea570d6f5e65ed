from actors.wire import define, episode_pb2  # whose messages these contain

define(__name__, globals())
