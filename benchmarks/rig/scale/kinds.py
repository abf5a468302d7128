"""The kinds of requests that an episode is made of, as `rig.scale.relay.kind_of` names them."""

BEGIN = "POST /episodes"
CALL = "POST /v1/chat/completions"
END = "POST /episodes/ID/end"
BEAT = "POST /episodes/ID/heartbeat"
