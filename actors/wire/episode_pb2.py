from actors.wire import define

define(__name__, globals())
