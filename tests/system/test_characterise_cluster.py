"""Workers that are other processes on other machines, as far as one machine can show it."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from feedhandler.characterise.job import Request, characterise
from feedhandler.characterise.tables import tables_of
from tests.support.characterise import FEED, write_session
from tests.support.checkout import CHECKOUT
from tests.support.needs import absent, long_where

#: An executor with a core and a GB, started as a cluster's are.
MASTER = "local-cluster[1,1,1024]"
#: Java comes up twice, and the executor's Python: ten seconds, on a machine that is busy
#: many times that.
LIMIT_S = 400

#: What a driver does. The package is known to it alone: nothing in the environment names it.
DRIVER = """
import json, os, shutil, sys
checkout, capture, target, master = sys.argv[1:]
sys.path.insert(0, checkout)
from feedhandler.characterise.cluster import SparkRunner, spark_session
from feedhandler.characterise.job import Request, characterise
from feedhandler.characterise.tables import tables_of
from feedhandler.characterise import tally
from feedhandler.codecs import load_feed

spark = spark_session(master, memory="512m")
def of_workers(_):
    from feedhandler.characterise import tally
    return tally.__file__, os.getppid()
found = spark.sparkContext.range(8, numSlices=8).map(of_workers).collect()
outcome = characterise([capture], Request("euronext-utp-md"), SparkRunner(spark), slice_size=60_000)
tables = tables_of(outcome, load_feed("euronext-utp-md"), "UTC")
with open(target, "w") as file:
    json.dump({
        "modules": sorted({path for path, _ in found}),
        "mine": tally.__file__,
        "slices": outcome.files[0].slices,
        "tables": {each.name: each.rows for each in tables if each.name != "files"},
    }, file)
application = spark.sparkContext.applicationId
spark.stop()
# What its workers leave lies where Spark is installed.
from pyspark.find_spark_home import _find_spark_home
shutil.rmtree(os.path.join(_find_spark_home(), "work", application), ignore_errors=True)
"""


@long_where("java", "half a minute")
@pytest.mark.timeout(LIMIT_S + 10)
def test_executors_get_the_package_and_the_tables_are_those_of_one_process(
    tmp_path: Path,
) -> None:
    if find_spec("pyspark") is None:
        absent("java", "pyspark is not installed")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        absent("java", "no Java found; Spark needs 17 or later")
    session = write_session(tmp_path / "day.pcap", seed=23, seconds=0.1)
    (tmp_path / "driver.py").write_text(DRIVER)
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    # A path of the driver's folder: executors stand in folders of their own.
    done = subprocess.run(
        [sys.executable, "driver.py", str(CHECKOUT), session.name, "out.json", MASTER],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    result = json.loads((tmp_path / "out.json").read_text())
    # Each executor has its own copy, in its own folder: what was sent, not what is here.
    assert result["modules"]
    assert all(Path(path).name == Path(result["mine"]).name for path in result["modules"])
    package = CHECKOUT / "feedhandler"
    assert Path(result["mine"]).is_relative_to(package)
    assert not any(Path(path).is_relative_to(package) for path in result["modules"])
    assert result["slices"] > 3
    here = tables_of(characterise([str(session)], Request("euronext-utp-md")), FEED, "UTC")
    expected = {each.name: each.rows for each in here if each.name != "files"}
    assert result["tables"] == json.loads(json.dumps(expected))
