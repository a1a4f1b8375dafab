# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ask the profiler of a task's server to record the task, by one request.

TensorFlow's client sends no options of others, and waits by a service that looks every millisecond
whether the time is over: on two cores, that alone slows the steps of three tasks by 3 to 7 %. The
request here asks TensorFlow for nothing, and the plugin in the task for a recording; the plugin's
part of the profiler sleeps until it is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_METHOD = "/tensorflow.ProfilerService/Profile"
# The plugin knows it (recv_profiler.cc). A task without the plugin answers at once.
_OPTION = "tf_fuse_record_ms"
# A profile of more is not read: it takes minutes.
_MOST_BYTES = 1 << 30
# For which a task's answer is waited, after the recording.
_ANSWER_S = 60.0


class ProfilerError(RuntimeError):
    """A task gave no profile; the text says why."""


class Recording:
    """A task's recording, which has begun.

    Args:
      address: "host:port" of the task's server.
      seconds: how long to record.
      folder: for the files of TensorFlow 2.20, whose tasks write their profiles.
    """

    def __init__(self, address: str, seconds: float, folder: Path):
        import grpc

        self._folder = folder
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", _MOST_BYTES),
                ("grpc.enable_http_proxy", 0),  # Tasks reach each other directly, too.
            ],
        )
        call = self._channel.unary_unary(_METHOD)
        self._answer = call.future(_request(seconds, folder), timeout=seconds + _ANSWER_S)

    def profile(self) -> Any:
        """Wait for the end; return the profile, an XSpace.

        Raises:
          ProfilerError: there is none.
        """
        import grpc
        from google.protobuf.message import DecodeError
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        from tf_fuse.v1 import profile_pb2

        try:
            answer = profile_pb2.ProfileResponse.FromString(self._answer.result())
            return xplane_pb2.XSpace.FromString(answer.xspace or self._file())
        except DecodeError as error:
            raise ProfilerError(f"its answer cannot be read: {error}") from None
        except grpc.RpcError:
            code = self._answer.code()
            more = "; record fewer seconds" if code is grpc.StatusCode.RESOURCE_EXHAUSTED else ""
            text = str(self._answer.details())[:200]
            raise ProfilerError(f"{code.name}: {text}{more}") from None
        finally:
            self._channel.close()

    def _file(self) -> bytes:
        paths = sorted(self._folder.rglob("*.xplane.pb"))
        if not paths:
            raise ProfilerError(
                f"it wrote no profile to {self._folder}: tasks with TensorFlow 2.20 have to run "
                "where this process reads their files"
            )
        size = paths[0].stat().st_size
        if size > _MOST_BYTES:
            raise ProfilerError(f"its profile has {size:,} bytes; record fewer seconds")
        return paths[0].read_bytes()


def _request(seconds: float, folder: Path) -> bytes:
    from tensorflow.tsl.profiler.protobuf import profiler_options_pb2

    from tf_fuse.v1 import profile_pb2

    # (All levels are 0.)
    options = profiler_options_pb2.ProfileOptions(version=1)
    options.advanced_configuration[_OPTION].int64_value = max(1, round(1e3 * seconds))
    request = profile_pb2.ProfileRequest(
        opts=options.SerializeToString(),
        repository_root=str(folder),
        session_id="recording",
        host_name="task",
        emit_xspace=True,
    )
    return bytes(request.SerializeToString())
