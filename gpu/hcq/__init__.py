"""Vendor-neutral command queues: commands, segments, timelines, memory and graphs.

A vendor plugs in below (`gpu.hcq.ports`): an encoder of commands, memory, and queues to publish in.
Everything here needs the standard library and numpy alone. `docs/hcq.md` tells the contracts.
"""

from gpu.hcq.allocator import HCQAllocator as HCQAllocator
from gpu.hcq.args import ArgumentLayout as ArgumentLayout
from gpu.hcq.bound import BoundQueue as BoundQueue
from gpu.hcq.buffer import HCQBuffer as HCQBuffer
from gpu.hcq.channel import Point as Point
from gpu.hcq.deps import DependencyTracker as DependencyTracker
from gpu.hcq.device import HCQDevice as HCQDevice
from gpu.hcq.encoder import Encoder as Encoder
from gpu.hcq.graph import GraphCopy as GraphCopy
from gpu.hcq.graph import GraphLaunch as GraphLaunch
from gpu.hcq.graph import HCQGraph as HCQGraph
from gpu.hcq.ports import DevicePort as DevicePort
from gpu.hcq.ports import MemoryKind as MemoryKind
from gpu.hcq.profile import Profiler as Profiler
from gpu.hcq.program import HCQProgram as HCQProgram
from gpu.hcq.program import ProgramArguments as ProgramArguments
from gpu.hcq.queue import HWQueue as HWQueue
from gpu.hcq.signal import Signal as Signal
from gpu.hcq.symbol import Symbol as Symbol

HCQCompiled = HCQDevice
HCQSignal = Signal
HCQArgsState = ProgramArguments
