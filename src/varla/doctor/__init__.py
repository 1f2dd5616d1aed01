"""Checks this machine: versions, devices, and the numbers of every operator by every backend that can run here.

`examine` looks at the machine. `plan` lists the checks, `run_apart` carries them out, `Report` sums up.
"""

from varla.doctor.checks import FINE as FINE
from varla.doctor.checks import WRONG as WRONG
from varla.doctor.checks import Check as Check
from varla.doctor.checks import Outcome as Outcome
from varla.doctor.checks import plan as plan
from varla.doctor.machine import Machine as Machine
from varla.doctor.machine import examine as examine
from varla.doctor.report import Report as Report
from varla.doctor.runner import run_apart as run_apart
from varla.doctor.runner import run_here as run_here
