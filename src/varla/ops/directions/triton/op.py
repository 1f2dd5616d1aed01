"""The kernels of `directions` as one PyTorch operator with a hand-written backward."""

from varla.ops.directions.settings import DirectionSettings
from varla.ops.directions.triton.launch import DirectionLauncher
from varla.ops.triton.op import KernelOperator

directions_triton = KernelOperator("directions_triton", DirectionLauncher, DirectionSettings).forward
