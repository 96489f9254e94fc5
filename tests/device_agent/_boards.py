"""What ``/sys`` and ``/proc`` look like on some machines, as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FIRMWARE = "sys/devices/platform/soc/soc:firmware/get_throttled"
FIRMWARE_5 = "sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled"
SUPPLY, THERMAL, NET = "sys/class/power_supply", "sys/class/thermal", "sys/class/net"
HEADER = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
SIX = "00000000000000000000000000000000"


def route(interface: str, metric: int = 100, destination: str = "00000000") -> str:
    """A line of /proc/net/route."""
    mask = "00000000" if destination == "00000000" else "00FFFFFF"
    return f"{interface}\t{destination}\t0101A8C0\t0003\t0\t0\t{metric}\t{mask}\t0\t0\t0\n"


def route6(interface: str, metric: str = "00000400") -> str:
    """A line of /proc/net/ipv6_route."""
    gateway = "fe80000000000000021122fffe334455"
    return f"{SIX} 00 {SIX} 00 {gateway} {metric} 00000001 00000000 00450003 {interface:>8}\n"


PI_4 = {
    FIRMWARE: "0\n",
    f"{THERMAL}/thermal_zone0/type": "cpu-thermal\n",
    f"{THERMAL}/thermal_zone0/temp": "48312\n",
    f"{THERMAL}/cooling_device0/type": "cpufreq-cpu0\n",
    f"{THERMAL}/cooling_device0/cur_state": "0\n",
    f"{NET}/eth0/type": "1\n",
    f"{NET}/wlan0/type": "1\n",
    f"{NET}/wlan0/wireless/beacon": "",
    "proc/net/route": HEADER + route("wlan0", 600) + route("eth0", 100) + route("eth0", 0, "0001A8C0"),
}
PI_5 = {
    FIRMWARE_5: "50005\n",  # under-voltage and throttled now, and before
    f"{THERMAL}/thermal_zone0/type": "cpu-thermal\n",
    f"{THERMAL}/thermal_zone0/temp": "83900\n",
    f"{THERMAL}/cooling_device0/type": "pwm-fan\n",
    f"{THERMAL}/cooling_device0/cur_state": "4\n",
    f"{SUPPLY}/rpi-poe/type": "Mains\n",
    f"{SUPPLY}/rpi-poe/online": "0\n",  # a PoE hat that is there and not in use
    f"{NET}/wlan0/type": "1\n",
    f"{NET}/wlan0/uevent": "DEVTYPE=wlan\nINTERFACE=wlan0\n",
    "proc/net/route": HEADER + route("wlan0"),
}
JETSON = {
    f"{THERMAL}/thermal_zone0/type": "cpu-thermal\n",
    f"{THERMAL}/thermal_zone0/temp": "51468\n",
    f"{THERMAL}/thermal_zone1/type": "gpu-thermal\n",  # switched off: it cannot be read, see the test
    f"{THERMAL}/thermal_zone7/type": "tj-thermal\n",
    f"{THERMAL}/thermal_zone7/temp": "52812\n",
    f"{THERMAL}/thermal_zone8/type": "PMIC-Die\n",
    f"{THERMAL}/thermal_zone8/temp": "100000\n",
    f"{THERMAL}/cooling_device0/type": "pwm-fan\n",
    f"{THERMAL}/cooling_device0/cur_state": "2\n",
    f"{THERMAL}/cooling_device3/type": "cpu-throttle-alert\n",
    f"{THERMAL}/cooling_device3/cur_state": "1\n",
    f"{THERMAL}/cooling_device4/type": "devfreq-17000000.gpu\n",
    f"{THERMAL}/cooling_device4/cur_state": "0\n",
    f"{NET}/eth0/type": "1\n",
    "proc/net/route": HEADER,
    "proc/net/ipv6_route": route6("lo", "ffffffff") + route6("eth0"),
}
LAPTOP = {
    f"{SUPPLY}/AC/type": "Mains\n",
    f"{SUPPLY}/AC/online": "0\n",
    f"{SUPPLY}/BAT0/type": "Battery\n",
    f"{SUPPLY}/BAT0/present": "1\n",
    f"{SUPPLY}/BAT0/status": "Discharging\n",
    f"{SUPPLY}/BAT0/energy_now": "25000000\n",
    f"{SUPPLY}/BAT0/energy_full": "50000000\n",
    f"{SUPPLY}/BAT1/type": "Battery\n",
    f"{SUPPLY}/BAT1/status": "Not charging\n",
    f"{SUPPLY}/BAT1/capacity": "75\n",
    f"{SUPPLY}/hidpp_battery_0/type": "Battery\n",  # a mouse
    f"{SUPPLY}/hidpp_battery_0/scope": "Device\n",
    f"{SUPPLY}/hidpp_battery_0/status": "Charging\n",
    f"{SUPPLY}/hidpp_battery_0/capacity": "5\n",
    f"{THERMAL}/thermal_zone0/type": "acpitz\n",
    f"{THERMAL}/thermal_zone0/temp": "27800\n",
    f"{THERMAL}/cooling_device0/type": "Processor\n",
    f"{THERMAL}/cooling_device0/cur_state": "0\n",
    f"{THERMAL}/cooling_device9/type": "intel_powerclamp\n",
    f"{THERMAL}/cooling_device9/cur_state": "-1\n",
    "sys/class/hwmon/hwmon3/name": "k10temp\n",
    "sys/class/hwmon/hwmon3/temp1_input": "61250\n",
    "sys/class/hwmon/hwmon4/name": "nvme\n",
    "sys/class/hwmon/hwmon4/temp1_input": "91000\n",
    f"{NET}/wlp3s0/type": "1\n",
    f"{NET}/wlp3s0/wireless/beacon": "",
    f"{NET}/tun0/type": "65534\n",
    "proc/net/route": HEADER + route("tun0", 50) + route("wlp3s0", 600),
}
PHONE = {
    f"{SUPPLY}/battery/type": "Battery\n",
    f"{SUPPLY}/battery/status": "Charging\n",
    f"{SUPPLY}/battery/capacity": "64\n",
    f"{SUPPLY}/usb/type": "USB_DCP\n",
    f"{SUPPLY}/usb/online": "1\n",
    f"{SUPPLY}/bms/type": "BMS\n",
    f"{SUPPLY}/bms/capacity": "60\n",
    f"{THERMAL}/thermal_zone5/type": "cpu-1-0-usr\n",
    f"{THERMAL}/thermal_zone5/temp": "39200\n",
    f"{THERMAL}/thermal_zone6/type": "cpu-1-1-usr\n",
    f"{THERMAL}/thermal_zone6/temp": "-273000\n",  # switched off
    f"{THERMAL}/thermal_zone40/type": "battery\n",
    f"{THERMAL}/thermal_zone40/temp": "31000\n",
    f"{THERMAL}/cooling_device2/type": "thermal-cpufreq-1\n",
    f"{THERMAL}/cooling_device2/cur_state": "3\n",
    f"{NET}/rmnet_data0/type": "519\n",
    "proc/net/route": HEADER + route("rmnet_data0", 0),
}


def build(root: Path, files: Mapping[str, str]) -> tuple[Path, Path]:
    """The files under a directory; its ``sys`` and ``proc``."""
    for name in ("sys/class", "proc"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root / "sys", root / "proc"
