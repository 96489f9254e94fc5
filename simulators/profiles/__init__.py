"""What emulated devices are, and how they live: profiles, traces, batteries and lives, all pure functions of a seed."""

from simulators.profiles.energy import Activity, Battery, Spent, empties, full, lived, turns
from simulators.profiles.fleet import fleet_lives
from simulators.profiles.life import CALM, Churn, Happening, Kind, Life, Situation
from simulators.profiles.lives import churn_of, lives
from simulators.profiles.mix import dealt
from simulators.profiles.profile import REFERENCE, DeviceProfile, Source, network, slowdown
from simulators.profiles.registry import HOST, Profiles, built_in, load_profiles, profile
from simulators.profiles.trace import ALWAYS, AWAY, DAY, HOUR, MONDAY, Interval, Presence, Trace
from simulators.profiles.trace_file import load_traces, traces_of
from simulators.profiles.traces import Diurnal, always, diurnal, fleet_traces

__all__ = [
    "ALWAYS",
    "AWAY",
    "CALM",
    "DAY",
    "HOST",
    "HOUR",
    "MONDAY",
    "REFERENCE",
    "Activity",
    "Battery",
    "Churn",
    "DeviceProfile",
    "Diurnal",
    "Happening",
    "Interval",
    "Kind",
    "Life",
    "Presence",
    "Profiles",
    "Situation",
    "Source",
    "Spent",
    "Trace",
    "always",
    "built_in",
    "churn_of",
    "dealt",
    "diurnal",
    "empties",
    "fleet_lives",
    "fleet_traces",
    "full",
    "lived",
    "lives",
    "load_profiles",
    "load_traces",
    "network",
    "profile",
    "slowdown",
    "traces_of",
    "turns",
]
