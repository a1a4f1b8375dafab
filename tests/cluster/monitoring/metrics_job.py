# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A job with two servers, two workers and a chief; each is scraped."""

import json
import re
import subprocess

from tests.fault import coordinator

TASKS = ["/job:chief/replica:0/task:0"] + [
    f"/job:{job}/replica:0/task:{index}" for job in ("ps", "worker") for index in range(2)
]
SERVERS, WORKERS = TASKS[1:3], TASKS[3:]
SCRAPES = 40


def _main():
    import concurrent.futures
    import os
    import signal
    import sys
    import urllib.error
    import urllib.request
    import warnings

    import keras
    import prometheus_client
    import tensorflow as tf

    import tf_fuse
    import tf_fuse.prometheus
    from tf_fuse.cluster.ports import HeldPorts

    held = HeldPorts(4)
    names = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
    addresses = {"ps": [], "worker": []}
    for (job, _), port in zip(names, held.numbers, strict=True):
        addresses[job].append(f"localhost:{port}")
    steps = 20

    def start(job, index):
        config = {
            "cluster": addresses,
            "task": {"type": job, "index": index},
            "rpc_layer": "grpc+fuse",
        }
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "tf_fuse", "run", "--health-port", "0"],
            env={**os.environ, "TF_CONFIG": json.dumps(config)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ready(process):
        """The URL of its metrics, once it is ready."""
        url = None
        for line in process.stdout:
            if "health at " in line:
                url = line.split("health at ")[1].strip().replace("healthz", "metrics")
            if "serve: ready" in line:
                return url
        raise RuntimeError(f"a task ended with status {process.wait()}")

    tasks = {f"/job:{job}/replica:0/task:{index}": start(job, index) for job, index in names}
    try:
        urls = {task: ready(process) for task, process in tasks.items()}
        tf.config.optimizer.set_experimental_options(
            {"do_fuse_recv": True, "fuse_grouping": "level", "fuse_weight_update": True}
        )
        strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(addresses), rpc_layer="grpc+fuse"
            )
        )
        tf_fuse.prometheus.register()
        server, _ = prometheus_client.start_http_server(0, addr="127.0.0.1")
        urls[TASKS[0]] = f"http://127.0.0.1:{server.server_port}/metrics"
        with strategy.scope():
            variables = [tf.Variable(tf.ones([4, 3])) for _ in range(4)]
            optimizer = keras.optimizers.SGD(0.5)
            optimizer.build(variables)

        def replica():
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(tf.square(v)) for v in variables])
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        @tf.function
        def step():
            return strategy.run(replica)

        coordinator_of_job = tf.distribute.coordinator.ClusterCoordinator(strategy)

        def train():
            for _ in range(steps):
                coordinator_of_job.schedule(step)
            coordinator_of_job.join()
            return steps * (len(variables) + 1)  # and the optimizer's number of steps

        def scrape(task):
            with urllib.request.urlopen(urls[task], timeout=100) as answer:
                text = answer.read().decode()
            # (The default registry has metrics of Python, too.)
            return "".join(
                line
                for line in text.splitlines(keepends=True)
                if re.match(r"(# \w+ )?tf_fuse_", line)
            )

        def scrapes():
            with concurrent.futures.ThreadPoolExecutor(20) as threads:
                return [
                    [task, found.result()]
                    for task, found in [
                        (task, threads.submit(scrape, task))
                        for _ in range(SCRAPES)
                        for task in urls
                    ]
                ]

        def cluster_text():
            with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):
                return tf_fuse.prometheus_text(cluster=True, timeout_s=5.0)

        def after_a_death():
            # It has accepted the connection, and gives no answer: then it dies.
            os.kill(tasks[WORKERS[1]].pid, signal.SIGSTOP)
            with concurrent.futures.ThreadPoolExecutor(1) as threads:
                asked = threads.submit(cluster_text)
                os.kill(tasks[WORKERS[1]].pid, signal.SIGKILL)
                text = asked.result()
            lost, texts = [], {}
            for task in urls:
                try:
                    texts[task] = scrape(task)
                except (OSError, urllib.error.URLError):
                    lost.append(task)
            return {"lost": lost, "texts": texts, "cluster": text}

        coordinator.finish(
            {
                "updates": train,
                "texts": lambda: {task: scrape(task) for task in urls},
                "counters": tf_fuse.cluster_metrics,
                "scrapes": scrapes,
                "versions": lambda: {
                    "version": tf_fuse.__version__,
                    "tensorflow": tf.__version__,
                },
                "after a death": after_a_death,
                "clean_up": lambda: [process.kill() for process in tasks.values()],
            }
        )
    finally:
        for process in tasks.values():
            process.kill()


if __name__ == "__main__":
    _main()
